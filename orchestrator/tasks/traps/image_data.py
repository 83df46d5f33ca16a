"""Tests that trust a file which the image brings in a directory of data: the agent can write it, and the tests get what it wrote.

Known are the files of `environment/` that a Dockerfile copies to such a place. Those that the reference solution mentions are part of the work.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.dockerfile import Instruction, logical_lines, split, stage_of
from orchestrator.tasks.environment import DOCKERFILE
from orchestrator.tasks.harbor import CONTEXT, Task
from orchestrator.tasks.last_stage import last_stage, workdir_of
from orchestrator.tasks.traps.rules import Rule, Trap
from sandboxes.elsewhere import DEFAULT, SHARED, place_of

_FLAGS: Final = re.compile(r"(?:--\S+\s+)+")
_PATH: Final = re.compile(r"/[\w./-]+")
_RESTORED: Final = re.compile(
    r"\b(?:cp|install|mv)\s(?:[^;&|#]*\s)?[\"']?/tests/[^;&|#\s]+\s+[\"']?(/[\w./-]+)[\"']?\s*(?:$|[;&|#])"
)
"""A copy of a file of the tests to a file."""
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
        and (_is_writable(place) or any(f"{path}/".startswith(f"{each}/") for each in named))
    }
    solutions = [
        file.data.decode(errors="replace")
        for path, file in task.files.items()
        if _SOLUTION.match(path) and file.size <= _READ_BYTES
    ]
    trusted = {path for path in placed if not any(posixpath.basename(path) in each for each in solutions)}
    for path, body in tests.items() if trusted and solutions else ():
        restored: set[str] = set()
        for number, line in enumerate(body.decode(errors="replace").splitlines(), start=1):
            if line.lstrip().startswith("#"):
                continue
            restored |= {match[1] for match in _RESTORED.finditer(line)}
            if (trusted - restored).intersection(_PATH.findall(line)):
                yield Trap(rule=Rule.IMAGE_DATA, file=path, line=number, text=line.strip())


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
    for line, logical in lines:
        name, *rest = logical.split(None, 1)
        if name.upper() == "FROM":
            base, alias = stage_of(logical)
            found = [*stages.get(base, ())]
        elif name.upper() in ("COPY", "ADD"):
            found += _copied(
                Instruction(
                    line=line, name=name.upper(), rest="".join(rest), words=(), flags={}, is_json=False
                ),
                context,
            )
        stages[alias] = found
    yield from found


def _copied(instruction: Instruction, context: Bundle) -> Iterator[str]:
    flags = _FLAGS.match(instruction.rest)
    rest = instruction.rest[flags.end() :] if flags is not None else instruction.rest
    *sources, target = _words(instruction, rest) or [""]
    if not target.startswith("/") or (flags is not None and "--from=" in flags[0]):
        return
    for source in (posixpath.normpath("/" + each).lstrip("/") for each in sources):
        for path in context.files:
            above = next((each for each in _with_parents(path) if fnmatchcase(each, source)), None)
            if above is None:
                continue
            alone = above == path and not target.endswith("/") and len(sources) == 1
            name = posixpath.basename(path) if above == path else path[len(above) :].lstrip("/")
            yield posixpath.normpath(target if alone else posixpath.join(target, name))


def _words(instruction: Instruction, rest: str) -> list[str]:
    try:
        words = json.loads(rest)
    except (ValueError, RecursionError):
        try:
            return list(split(instruction, rest))
        except ValueError:
            return []
    return [word for word in words if isinstance(word, str)] if isinstance(words, list) else []


def _with_parents(path: str) -> Iterator[str]:
    """A path and the directories above it, the last one is the context itself."""
    yield path
    while path:
        path = posixpath.dirname(path)
        yield path
