"""Well-made tasks of many kinds, as a set that users can read, vet and train on: `python -m ops.lab.task_set DIR`.

small.py         short tasks without an image; `penstock tasks vet` must refuse none of them
alike.py         tasks whose hidden tests or solution repeat much of what the agent may read
worlds.py        tasks whose environment has more than files: a repository, a database, a service, an MCP server, much data, a compiler, …
repository.py    the git repository of some of them
steps.py         a task of two steps, and one as root inside
images.py        tasks whose Dockerfile needs an image: pip, apt, Node, stages, USER, a named user

Everything is generated: the same files each time, from seeds. Compose files are not among them, since they are refused.
"""

from ops.lab.task_set.alike import ALIKE
from ops.lab.task_set.images import WITH_IMAGES
from ops.lab.task_set.small import SMALL_TASKS, Files
from ops.lab.task_set.steps import STEPS_AND_USERS
from ops.lab.task_set.worlds import WORLDS

METADATA = "[metadata]\n"
PLAIN = {**SMALL_TASKS, **ALIKE, **WORLDS, **STEPS_AND_USERS}
"""Name → a function that makes the files of a task that needs no image."""
ALL = {**PLAIN, **WITH_IMAGES}


def made(name: str) -> Files:
    """The files of a task, with its name in `task.toml`."""
    files = ALL[name]()
    toml, line = files["task.toml"].decode(), f'name = "{name}"\n'
    named = toml.replace(METADATA, METADATA + line) if METADATA in toml else f"{toml}\n{METADATA}{line}"
    return {**files, "task.toml": named.encode()}


__all__ = ["ALL", "PLAIN", "WITH_IMAGES", "WORLDS", "Files", "made"]
