"""VOLUME of a Dockerfile: a directory of data, which programs write and whose changes the tests see, or it is refused."""

from collections.abc import Iterator

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.environment import Environment, writes_elsewhere
from orchestrator.tasks.last_stage import last_stage
from orchestrator.tasks.work_dir import dockerfile_of
from sandboxes.base import WRITABLE, Provider
from sandboxes.elsewhere import place_of
from sandboxes.paths import is_within


def volumes_closed(
    environment: Environment, begins: str | None, provider: Provider | type[Provider]
) -> Iterator[str]:
    """A sentence for each VOLUME of an environment's Dockerfile that its programs cannot write. `begins`: its work directory; None: not known here,
    so any volume may be in it."""
    if environment.build is None or environment.prebuilt is not None:
        return
    for each in last_stage(dockerfile_of(environment)).volumes:
        path = each.path
        if path is None or any(is_within(path, free) for free in (*WRITABLE, begins or path)):
            continue
        if not place_of(path):
            yield (
                f"{each.instruction.at} {quoted(path)} is not honoured: the system keeps programs and settings there, and nothing may change them: "
                "name a directory of data such as /data, or remove it"
            )
        elif not writes_elsewhere(provider):
            yield (
                f"{each.instruction.at} {quoted(path)} is not honoured: of an image, sandboxes of the provider {provider.name} let programs write "
                "the work directory alone: name a directory in it, remove it, or choose bubblewrap with sandbox.images.directory"
            )
