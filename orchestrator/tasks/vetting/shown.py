"""Text of the solution and the hidden tests that the agent's own files have by design. It is not secret, wherever else it stands.

| text | is known from a readable file |
|---|---|
| of a file of the hidden tests | at the same path, if the hidden one is a test in source code and has more text: the tests extend the project's |
| of one that has no more text | at the same path, if another hidden test has text of its own: it passed before the work |
| of programs of the solution, also those that it writes | of the ending of a new program, with `ENCODED` of its text, without `LEFT`: its pattern |

A readable file that has all of a secret is thus never known, except the second kind. Data have no pattern: rows of an answer are the answer.
"""

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from orchestrator.tasks.needles import Needles
from orchestrator.tasks.unchanged_files import HIDDEN
from orchestrator.tasks.vetting.leaks import ENCODED, MIN_BYTES, PLAIN, Readable
from orchestrator.tasks.vetting.secrets import Body, Solved, Source

LEFT: Final = 0.1
"""The least part of a solution's text that its pattern lacks. A file that lacks less is a copy."""
LINES: Final = 3
"""The fewest lines that a pattern shares with a new program, and the fewest that it lacks of a file whose half it has."""
_PROGRAM: Final = re.compile(
    r"\.([cm]?[jt]s|[jt]sx|[chlrstv]|[ch](pp|xx|h)|cc|adb|awk|ba(sh|ts)|cljs?|coffee|cs|cu|d|dart|el|elm|erl|exs?|f|f90|fsx?|go|groovy|hrl|hs|java|jl"
    r"|kts?|lisp|lua|mli?|mm?|nim|pas|php|p[lm]|ps1|py[ix]?|rb|rkt|rs|scala|scm|sh|sol|svh?|svelte|swift|tcl|vb|vhdl?|vue|zig|zsh)$",
    re.IGNORECASE,
)
"""Endings of source code. Files such as .sql and .html may be results."""
_TESTS: Final = re.compile(
    r"(?i:(?:^|[_.-])(?:tests?|spec)(?:[\d_.-]|$))|(?:^|[a-z\d_])(?:Tests?|Spec)(?:[A-Z\d_.]|$)"
)
"""A name such as test_a.py, a.spec.ts or ATest.java, but neither conftest.py nor inspect.py."""
_SCRIPT: Final = "test.sh"
"""The program that decides belongs to the task alone."""


def not_shown(bodies: Iterable[Body], solved: Solved, readable: Readable) -> list[Body]:
    """The bodies without the text that readable files have by design; a body without any text left is left out."""
    found = _beyond_tests(list(bodies), readable)
    known = _of_patterns(found, solved, readable)
    found = [_less(body, known) if _may_follow(body) else body for body in found]
    return [body for body in found if body.lines or body.values or body.names]


def _less(body: Body, known: Set[bytes]) -> Body:
    if known.isdisjoint(body.lines) and known.isdisjoint(body.values):
        return body
    return replace(body, lines=body.lines - known, values=body.values - known)


def _is_program(name: str) -> bool:
    return _PROGRAM.search(name) is not None


def _may_follow(body: Body) -> bool:
    """Whether a body may repeat a pattern. A file of data is a result."""
    return body.source in (Source.SOLUTION, Source.WORK) and _is_program(body.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extended:
    """A body of the hidden tests. `rest`: without what the files at its path have; `repeated`: one of them has all of it; `is_test`: it is a test,
    and no data or program of tests."""

    body: Body
    rest: Body
    repeated: bool
    is_test: bool


def _beyond_tests(bodies: Sequence[Body], readable: Readable) -> list[Body]:
    found = [
        _extended(body, readable)
        if body.source is Source.TESTS
        else _Extended(body=body, rest=body, repeated=False, is_test=False)
        for body in bodies
    ]
    hidden = any(each.is_test and not each.repeated and each.rest.lines for each in found)
    return [each.rest if not each.repeated else each.body for each in found if not (each.repeated and hidden)]


def _extended(body: Body, readable: Readable) -> _Extended:
    below = HIDDEN.sub("", body.name, count=1)
    is_test = below != _SCRIPT and _TESTS.search(below.rpartition("/")[2]) is not None and _is_program(below)
    names = [f"tests/{below}", *([below.removeprefix("files/")] if "/" in below else [])]
    paths = {path for name in names for path in readable.paths_of(name)} if below != _SCRIPT else set()
    rest, repeated = body, False
    for path in sorted(paths & readable.files.keys()):
        known = Needles(body.lines | body.values).within(readable.files[path])
        if not (body.lines - known or body.values - known):
            repeated = True
        elif is_test:
            rest = _less(rest, known)
    if not (rest.lines or rest.values):  # one file has a part, another the rest
        rest = body
    return _Extended(body=body, rest=rest, repeated=repeated, is_test=is_test)


def _of_patterns(bodies: Sequence[Body], solved: Solved, readable: Readable) -> Set[bytes]:
    """The text of readable programs after whose pattern the solution wrote new ones."""
    own = [body for body in bodies if body.source in (Source.SOLUTION, Source.WORK)]
    new = [
        body
        for body in own
        if body.source is Source.WORK
        and _is_program(body.name)
        and solved.before.keys().isdisjoint(readable.paths_of(body.name))
    ]
    endings = tuple({PurePosixPath(body.name).suffix for body in new})
    patterns: list[Set[bytes]] = []
    if endings:
        texts = Needles(text for body in own for text in (*body.lines, *body.values))
        for path, data in readable.files.items():
            there = texts.within(data) if path.endswith(endings) else set()
            ending = PurePosixPath(path).suffix
            alike = (body for body in new if there and PurePosixPath(body.name).suffix == ending)
            if any(_is_pattern(body, there) for body in alike):
                patterns.append(there)
    known: set[bytes] = set()
    for pattern in sorted(patterns, key=len, reverse=True):
        if not any(_gives_away(body, known | pattern) for body in own):
            known |= pattern
    return known


def _is_pattern(body: Body, texts: Set[bytes]) -> bool:
    return len(body.lines & texts) >= LINES and _bytes(body, texts) >= max(MIN_BYTES, ENCODED * body.size)


def _bytes(body: Body, texts: Set[bytes]) -> int:
    return sum(map(len, body.lines & texts))


def _gives_away(body: Body, texts: Set[bytes]) -> bool:
    """Whether `texts` have nearly all of a body, and enough to be a suspect."""
    if not body.lines:
        return bool(body.values) and body.values <= texts
    there = _bytes(body, texts)
    nearly = there > (1 - LEFT) * body.size
    nearly = nearly or (there >= PLAIN * body.size and len(body.lines - texts) < LINES)
    return nearly and (there >= MIN_BYTES or not body.values.isdisjoint(texts))
