"""The directory in which an agent's programs begin, read from its Dockerfile without a build. Artifacts are named relative to it."""

from orchestrator.tasks.environment import DOCKERFILE, Environment
from orchestrator.tasks.last_stage import workdir_of
from sandboxes.base import File, StoredFile
from sandboxes.images.adapt import work_directory


def begins_in(environment: Environment) -> str | None:
    """The directory in which programs of an environment begin, as they see it. None: that of a base image, which is not known here.
    ImageRefused for one that a sandbox needs itself."""
    if environment.build is None:
        return environment.work_dir
    work = workdir_of(dockerfile_of(environment))
    return None if work is None else work_directory(work)


def dockerfile_of(environment: Environment) -> str:
    """The Dockerfile of an environment that is built."""
    assert environment.build is not None
    dockerfile = environment.build[DOCKERFILE]
    assert isinstance(dockerfile, File | StoredFile)
    return dockerfile.data.decode(errors="replace")
