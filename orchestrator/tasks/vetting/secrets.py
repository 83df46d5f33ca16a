"""Texts that only the solution and the hidden tests contain: an agent must not find them.

A *body* is the text of one source: a file of solution/ or tests/, a file that the solution wrote, its answer. Its *lines* are those that it adds:
a line of a file that the solution changes was there before, so the agent may see it. Its *values* are words and quoted texts of at least `SHORT`
bytes that do not occur by chance. The text of the instruction is not secret.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Final

from orchestrator.tasks.harbor import SOLUTIONS, STEPS, Task, is_hidden
from orchestrator.tasks.vetting.compiled import own_names
from orchestrator.tasks.vetting.forms import SHORT

MAX_LINE: Final = 4096
MAX_LINES: Final = 5_000
"""Of one body; a larger one is data, and its values are searched for."""
SHORT_RESULT: Final = 3
"""Lines of a result whose whole lines count as values."""
_QUOTED: Final = re.compile(rb"\"([^\"\n\\]{12,400})\"|'([^'\n\\]{12,400})'")
_WORD: Final = re.compile(rb"[A-Za-z0-9+/_.:@#$%&*!?-]{12,400}")
_NAME: Final = re.compile(rb"[A-Za-z_$][A-Za-z_]*(?:[._:/-]+[A-Za-z_]+)*[.:]?")
_DATE: Final = re.compile(rb"[\d:.TZ/+_-]+")
_BOILERPLATE: Final = re.compile(
    rb"#!|(import|from)\s|set\s+-|\s*(if __name__|mkdir|cd|exit|echo [01]\b|export PATH|apt|pip)\b|#\s|//|.*(/logs/|PENSTOCK_|/tests/|/solution/)"
)


class Source(StrEnum):
    """Where a body comes from."""

    SOLUTION = auto()
    WORK = auto()
    ANSWER = auto()
    TESTS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The secrets of one source. `name`: the file, or empty for the answer; `lines` without surrounding white space; `values` likewise; `names`:
    what a compiled Python module keeps of it."""

    source: Source
    name: str
    lines: frozenset[bytes]
    values: frozenset[bytes]
    names: frozenset[bytes] = frozenset()
    size: int = field(init=False, default=0)
    """Bytes of its lines."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(map(len, self.lines)))


READ_BYTES: Final = 4 << 20
"""Larger files of solution and tests are not searched for secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The files that a successful solution left. `written`: path in the work directory → content; `before`: the environment's content of the
    files that it changed or deleted; `answer`: its final message."""

    written: Mapping[str, bytes] = field(default_factory=dict)
    before: Mapping[str, bytes] = field(default_factory=dict)
    answer: str = ""


def secrets_of(task: Task, solved: Solved) -> list[Body]:
    """The bodies of a task that hold any secret."""
    stated = task.instruction.encode()
    known = {line for body in solved.before.values() for line in _lines(body)}
    found = []
    for path, file in task.files.items():
        if file.size > READ_BYTES:  # data of the tests, not an answer
            continue
        if not is_hidden(path):
            continue
        if path.startswith(SOLUTIONS) or (path.startswith(STEPS) and path.split("/")[2] == "solution"):
            found.append(_body(Source.SOLUTION, path, file.data, stated, known))
        else:
            found.append(_body(Source.TESTS, path, file.data, stated, set()))
    for path, data in solved.written.items():
        if ".git" in path.split("/"):
            # Git's own notes about a commit: names of earlier objects, which the agent may see.
            continue
        found.append(_body(Source.WORK, path, data, stated, known))
    found.append(_body(Source.ANSWER, "", solved.answer.encode(), stated, known))
    return [body for body in found if body.lines or body.values or body.names]


def _body(source: Source, name: str, data: bytes, stated: bytes, known: Collection[bytes]) -> Body:
    added = [line for line in dict.fromkeys(_lines(data)) if line not in known and line not in stated]
    values = {value for line in added for value in strong_values(line) if value not in stated}
    if source in (Source.WORK, Source.ANSWER) and len(added) <= SHORT_RESULT:  # an answer may be prose
        values |= {line for line in added if len(line) >= 2 * SHORT and not _NAME.fullmatch(line)}
    lines = added if len(added) <= MAX_LINES else []
    return Body(
        source=source,
        name=name,
        lines=frozenset(line for line in lines if not _BOILERPLATE.match(line)),
        values=frozenset(values),
        names=_names(name, data, stated, known),
    )


def _names(name: str, data: bytes, stated: bytes, known: Collection[bytes]) -> frozenset[bytes]:
    if not name.endswith(".py"):
        return frozenset()
    before = b"\n".join(known)
    return frozenset(each for each in own_names(data) if each not in stated and each not in before)


def _lines(data: bytes) -> Iterator[bytes]:
    for line in data.splitlines():
        stripped = line.strip()
        if SHORT <= len(stripped) <= MAX_LINE:
            yield stripped


def strong_values(line: bytes) -> set[bytes]:
    """The texts in a line that are specific enough to search for.

    >>> sorted(strong_values(b'want="word-9f3a77c1e0"; python3 -I "$PENSTOCK_UNTRUSTED" /usr/bin/python3.11'))
    [b'word-9f3a77c1e0']
    """
    found = {a or b for a, b in _QUOTED.findall(line)} | set(_WORD.findall(line))
    return {value.strip(b".,:!?") for value in found if _strong(value.strip(b".,:!?"))}


def _strong(value: bytes) -> bool:
    if len(value) < SHORT or b"$" in value or value.startswith((b"/", b"./", b"-", b"http")):
        return False
    if _NAME.fullmatch(value):
        parts = [part for part in re.split(rb"[-]+", value) if part]
        return len(parts) >= 4 and all(part.isalpha() for part in parts)  # a pass phrase
    if b" " in value:
        return False  # prose: only whole lines of a result count
    if _DATE.fullmatch(value):
        return value.isdigit()
    letters = sum(bytes([each]).isalpha() for each in value)
    digits = sum(bytes([each]).isdigit() for each in value)
    return letters >= 2 and digits >= 2 and len(set(value)) >= 6 and value.count(b"/") <= 1
