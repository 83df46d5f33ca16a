"""Files of a task that have a name of the format, and lie where nothing reads them. A task that has one is refused by its path.

All other files are the author's own: notes, licences, data, evidence, folders of any other name. They are carried and not read.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_PLACES: Final = {
    "dockerfile": "environment/Dockerfile",
    "containerfile": "environment/Dockerfile",
    ".dockerignore": "environment/.dockerignore",
    "dockerfile.dockerignore": "environment/Dockerfile.dockerignore",
    **dict.fromkeys(
        ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml"),
        "environment/docker-compose.yaml",
    ),
    **dict.fromkeys(("test.sh", "tests.sh", "run-tests.sh", "run_tests.sh"), "tests/test.sh"),
    "test_outputs.py": "tests/test_outputs.py",
    **dict.fromkeys(("solve.sh", "solution.sh", "solution.yaml"), "solution/solve.sh"),
    **dict.fromkeys(("instruction.md", "instructions.md", "instruction.txt"), "instruction.md"),
    **dict.fromkeys(("task.toml", "tasks.toml"), "task.toml"),
}
"""Files at the top of a task, or of a step, in small letters, and the path that is read."""
OLDER: Final = "task.yaml"
IMPORT: Final = f"tasks of the older form ({OLDER}), which is not read: penstock tasks import terminal-bench FOLDER --to tasks makes tasks of them"
_FOLDERS: Final = {
    **dict.fromkeys(("environment", "environments", "env"), "environment/"),
    **dict.fromkeys(("tests", "test", "verifier", "verifiers"), "tests/"),
    **dict.fromkeys(("solution", "solutions"), "solution/"),
    **dict.fromkeys(("steps", "step"), "steps/"),
    "files": "environment/files/",
    "skills": "environment/files/ and name the place in [environment].skills_dir",
    "workdir": "environment/files/",
}
_KNOWN: Final = ("environment/", "tests/", "solution/", "steps/")
_STEP: Final = re.compile(r"steps/[^/]+/")
_SOLVERS: Final = frozenset({"solve.sh", "solution.sh", "solve.bash"})
_IGNORE: Final = ".harborignore"
_KEEPING: Final = frozenset(
    (".gitkeep", ".keep", ".gitignore", ".gitattributes", ".ds_store", "thumbs.db", "readme.md", "readme")
)
"""Names of files that no program of a task reads, in small letters."""


def misplaced(paths: Iterable[str]) -> Iterator[str]:
    """A sentence for each such file, and one for all files of a folder: the path, what is read instead, and the remedy."""
    listed = sorted(paths)
    there, folders = set(listed), set[str]()
    for path in listed:
        found = _STEP.match(path)
        top = found[0] if found else ""
        first, slash, rest = path.removeprefix(top).partition("/")
        if path.rpartition("/")[2] == _IGNORE and path.startswith(_KNOWN):
            yield f"{path} is not read: remove it, and the files that it names"
        elif not slash:
            yield from _file(top, first)
        elif (right := _FOLDERS.get(first.lower())) is not None and not _is_read(top, first):
            if f"{top}{first}" not in folders:
                folders.add(f"{top}{first}")
                yield f"{top}{first}/ is not read: move its files to {_of_step(top, right)}"
        elif rest.rpartition("/")[2] == "task.toml" and not _is_read(top, first):
            yield f"{path} is not read, a task lies in a folder of its own: give that folder, or remove it"
        elif first == "solution" and rest.lower() in _SOLVERS and f"{top}solution/solve.sh" not in there:
            yield f"{path} is not run: name it {top}solution/solve.sh"


def unplaced(paths: Iterable[str], used: tuple[str, ...]) -> Iterator[str]:
    """The paths below environment/ that are in none of the folders `used`, where nothing else places them. Files that keep a folder in git, and notes
    of the author, are passed over at the top of environment/."""
    for path in paths:
        folder, _, name = path.rpartition("/")
        own = f"{folder}/" == _KNOWN[0] and name.lower() in _KEEPING
        if path.startswith(_KNOWN[0]) and not own and not path.startswith(used):
            yield path


def _file(top: str, name: str) -> Iterator[str]:
    """Of a file at the top of a task, or of the step `top`."""
    if name.lower() == OLDER and not top:
        yield f"it holds {IMPORT}"
    elif (right := _PLACES.get(name.lower())) is not None and not _is_read(top, name):
        here = f"it lies at the top of {top.rstrip('/') if top else 'the task'}"
        yield f"{top}{name} is not read: {here}, and Penstock reads {_of_step(top, right)}: move it there, or remove it"


def _is_read(top: str, first: str) -> bool:
    """Whether the format has this file or folder here. Admission refuses trajectory.json, and environment/ of a step."""
    known = ("instruction.md", "trajectory.json", "tests", "solution", "environment")
    return first in (*known, *(("workdir",) if top else ("task.toml", "steps")))


def _of_step(top: str, right: str) -> str:
    """The right path in a step: what all steps share lies at the top of the task."""
    shared: Mapping[str, str] = {"environment/files/": f"{top}workdir/"}
    if top and right.startswith(("tests/", "solution/", "instruction.md")):
        return f"{top}{right}"
    return shared.get(right, right) if top else right
