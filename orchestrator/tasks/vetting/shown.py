"""Text of the solution and the hidden tests that the agent's own files have by design. It is not secret, wherever else it stands.

| text | is known from a readable file |
|---|---|
| of a file of the hidden tests | of the same name, if the hidden one has more text: the tests extend the project's |
| of one that has no more text | at the same path, if another test file has text that only the hidden tests contain: it passed before the work |
| of the solution and its work | of the ending of a new file, with `ENCODED` of its text and without `LEFT` of it: the pattern of the new file |

A readable file that has all of a secret is thus never known, except the second kind.
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from orchestrator.tasks.leak_check import HIDDEN
from orchestrator.tasks.needles import Needles
from orchestrator.tasks.vetting.leaks import ENCODED, MIN_BYTES, Readable
from orchestrator.tasks.vetting.secrets import Body, Solved, Source

LEFT: Final = 0.1
"""The least part of a solution's text that its pattern lacks. A file that lacks less is a copy."""
_TESTS: Final = re.compile(r"(?<!conf)test|spec", re.IGNORECASE)
_SCRIPT: Final = "test.sh"
"""The program that decides belongs to the task alone."""


def not_shown(bodies: Iterable[Body], solved: Solved, readable: Readable) -> list[Body]:
    """The bodies without the text that readable files have by design; a body without any text left is left out."""
    found = _beyond_tests(list(bodies), readable)
    known = _of_patterns(found, solved, readable)
    own = (Source.SOLUTION, Source.WORK)
    found = [_less(body, known) if body.source in own else body for body in found]
    return [body for body in found if body.lines or body.values or body.names]


def _less(body: Body, known: Set[bytes]) -> Body:
    if known.isdisjoint(body.lines) and known.isdisjoint(body.values):
        return body
    return replace(body, lines=body.lines - known, values=body.values - known)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extended:
    """A body of the hidden tests. `rest`: without what files of its name have; `repeated`: a file at the same path has all of it; `is_test`: it is
    a test, and no data or program of tests."""

    body: Body
    rest: Body
    repeated: bool
    is_test: bool


def _beyond_tests(bodies: Sequence[Body], readable: Readable) -> list[Body]:
    named: dict[str, list[str]] = {}
    for path in readable.files:
        named.setdefault(path.rpartition("/")[2], []).append(path)
    found = [
        _extended(body, named, readable.files)
        if body.source is Source.TESTS
        else _Extended(body=body, rest=body, repeated=False, is_test=False)
        for body in bodies
    ]
    hidden = any(each.is_test and not each.repeated and each.rest.lines for each in found)
    return [each.rest if not each.repeated else each.body for each in found if not (each.repeated and hidden)]


def _extended(body: Body, named: Mapping[str, Sequence[str]], files: Mapping[str, bytes]) -> _Extended:
    below = HIDDEN.sub("", body.name, count=1)
    name = below.rpartition("/")[2]
    if below == _SCRIPT or name not in named:
        is_test = below != _SCRIPT and _TESTS.search(name) is not None
        return _Extended(body=body, rest=body, repeated=False, is_test=is_test)
    ends = [f"/tests/{below}", *([f"/{below.removeprefix('files/')}"] if "/" in below else [])]
    rest, repeated = body, False
    texts = Needles(body.lines | body.values)
    for path in named[name]:
        known = texts.within(files[path])
        if body.lines - known or body.values - known:
            rest = _less(rest, known)
        else:
            repeated = repeated or path.endswith(tuple(ends))
    if not (rest.lines or rest.values):  # one file has a part, another the rest
        rest = body
    return _Extended(body=body, rest=rest, repeated=repeated, is_test=_TESTS.search(name) is not None)


def _of_patterns(bodies: Sequence[Body], solved: Solved, readable: Readable) -> Set[bytes]:
    """The text of readable files after whose pattern the solution wrote new ones."""
    own = [body for body in bodies if body.source in (Source.SOLUTION, Source.WORK)]
    new = [body for body in own if body.source is Source.WORK and not _is_changed(body.name, solved)]
    endings = tuple({PurePosixPath(body.name).suffix for body in new} - {""})
    patterns: list[Set[bytes]] = []
    if endings:
        texts = Needles(text for body in own for text in (*body.lines, *body.values))
        for path, data in readable.files.items():
            there = texts.within(data) if path.endswith(endings) else set()
            ending = PurePosixPath(path).suffix
            alike = (body for body in new if there and PurePosixPath(body.name).suffix == ending)
            if any(_bytes(body, there) >= max(MIN_BYTES, ENCODED * body.size) for body in alike):
                patterns.append(there)
    known: set[bytes] = set()
    for pattern in sorted(patterns, key=len, reverse=True):
        if not any(_gives_away(body, known | pattern) for body in own):
            known |= pattern
    return known


def _is_changed(name: str, solved: Solved) -> bool:
    return any(path.endswith(f"/{name.lstrip('/')}") for path in solved.before)


def _bytes(body: Body, texts: Set[bytes]) -> int:
    return sum(map(len, body.lines & texts))


def _gives_away(body: Body, texts: Set[bytes]) -> bool:
    """Whether `texts` have nearly all of a body, and enough to be a suspect."""
    if not body.lines:
        return bool(body.values) and body.values <= texts
    there = _bytes(body, texts)
    return there > (1 - LEFT) * body.size and (there >= MIN_BYTES or not body.values.isdisjoint(texts))
