"""The directory in which an agent's programs begin, read from its Dockerfile without a build. Artifacts are named relative to it."""

from orchestrator.tasks.environment import DOCKERFILE, Environment
from orchestrator.tasks.last_stage import LastStage, last_stage
from sandboxes.base import File, ImageRefused, StoredFile
from sandboxes.images.adapt import work_directory


def begins_in(environment: Environment) -> str | None:
    """The directory in which programs of an environment begin, as they see it. None: that of a base image, which is not known here.
    ImageRefused, with its line, for one that a sandbox needs itself."""
    if environment.build is None:
        return environment.work_dir
    try:
        found = last_stage(dockerfile_of(environment))
    except ValueError:  # a build refuses it as well
        found = LastStage()
    if found.work is None:
        return None
    try:
        return work_directory(found.work)
    except ImageRefused as error:
        at = "" if found.work_at is None else found.work_at.at.removesuffix(found.work_at.name)
        raise ImageRefused(f"{at}{error}") from error


def dockerfile_of(environment: Environment) -> str:
    """The Dockerfile of an environment that is built."""
    assert environment.build is not None
    dockerfile = environment.build[DOCKERFILE]
    assert isinstance(dockerfile, File | StoredFile)
    return dockerfile.data.decode(errors="replace")
