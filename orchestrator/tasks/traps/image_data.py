"""Tests that trust a file which the image brings in a directory of data: the agent can write it, and the tests get what it wrote.

Known are the files of `environment/` that a Dockerfile copies to such a place. Those that the reference solution mentions are part of the work.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Final

from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.copies import Copied, copied
from orchestrator.tasks.dockerfile import arguments_of, logical_lines, stage_of
from orchestrator.tasks.environment import DOCKERFILE
from orchestrator.tasks.harbor import CONTEXT, Task
from orchestrator.tasks.last_stage import last_stage, workdir_of
from orchestrator.tasks.traps.rules import Rule, Trap, lines_of
from sandboxes.elsewhere import DEFAULT, SHARED, lies_elsewhere, place_of

_PATH: Final = re.compile(r"/[\w./-]+")
_COMMANDS: Final = re.compile(r"[;&|#]")
_COPIES: Final = re.compile(r"\b(?:cp|install|mv)\s")
_RESTORED: Final = re.compile(r"(?<=\s)[\"']?/tests/\S+\s+[\"']?(/[\w./-]+)[\"']?\s*$")
"""The end of a command that copies a file of the tests to a file."""
_SOLUTION: Final = re.compile(r"(steps/[^/]+/)?solution/")
_READ_BYTES: Final = 1 << 20


def image_data_traps(task: Task, tests: Mapping[str, bytes]) -> Iterator[Trap]:
    """The lines of `tests`, content by path, that name such a file."""
    dockerfile = task.files.get(CONTEXT + DOCKERFILE)
    if dockerfile is None:
        return
    text = dockerfile.data.decode(errors="replace")
    work = workdir_of(text)
    # Without a name, nothing in them may be written.
    named = {*_volumes(text), *(each.source.rstrip("/") for each in task.settings.artifacts)}
    placed = {
        path
        for path in _placed(text, task.bundle.below(CONTEXT))
        if (place := place_of(path))
        and not path.startswith(f"{work}/")
        # A file at the root is in no directory that is carried.
        and (
            (_is_writable(place) and lies_elsewhere(path))
            or any(f"{path}/".startswith(f"{each}/") for each in named)
        )
    }
    solutions = [
        file.data.decode(errors="replace")
        for path, file in task.files.items()
        if _SOLUTION.match(path) and file.size <= _READ_BYTES
    ]
    trusted = {path for path in placed if not any(posixpath.basename(path) in each for each in solutions)}
    for path, body in tests.items() if trusted and solutions else ():
        restored: set[str] = set()
        for number, line in enumerate(lines_of(body.decode(errors="replace"))):
            if line.lstrip().startswith("#"):
                continue
            restored |= set(_restored(line))
            if (trusted - restored).intersection(_PATH.findall(line)):
                yield Trap(rule=Rule.IMAGE_DATA, file=path, line=number, text=line.strip())


def _restored(line: str) -> Iterator[str]:
    """The files to which a line copies files of the tests."""
    for command in _COMMANDS.split(line):
        copies = _COPIES.search(command)
        if copies and (found := _RESTORED.search(command, copies.end())):
            yield found[1]


def _is_writable(place: str) -> bool:
    top = place.split("/")[1]
    return top not in SHARED or top in DEFAULT


def _volumes(text: str) -> Iterator[str]:
    try:
        found = last_stage(text).volumes
    except ValueError:
        return
    yield from (volume.path for volume in found if volume.path is not None)


def _placed(text: str, context: Bundle) -> Iterator[str]:
    """Where COPY and ADD of the last stage put files of the context, as absolute paths."""
    found: list[str] = []
    stages: dict[str, list[str]] = {}
    alias = ""
    try:
        lines = logical_lines(text)
    except ValueError:
        return
    arguments = arguments_of(lines)
    for line, logical in lines:
        if logical.split(None, 1)[0].upper() == "FROM":
            base, alias = stage_of(logical, arguments)
            found = [*stages.get(base, ())]
        elif (taken := copied(line, logical)) is not None:
            found += _places(taken, context)
        stages[alias] = found
    yield from found


def _places(line: Copied, context: Bundle) -> Iterator[str]:
    """Where one line puts files of the context. What counts from WORKDIR is the agent's work."""
    if not line.target.startswith("/"):
        return
    for path in context.files:
        if (above := line.taken(path)) is None:
            continue
        alone = above == path and not line.target.endswith("/") and len(line.sources) == 1
        name = posixpath.basename(path) if above == path else path[len(above) :].lstrip("/")
        yield posixpath.normpath(line.target if alone else posixpath.join(line.target, name))
