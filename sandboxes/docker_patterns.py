"""Names with wildcards as Docker reads them: sources of COPY (Go's `filepath.Match`), and the lines of an ignore file.

The work for one name and one pattern grows with their lengths alone. An ignore file compares each name with each of its patterns.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

DEEP = "**"
"""In an ignore file any number of directories, if it stands for a whole part of a path."""

_WILD = re.compile(r"[*?\[\\]")


@lru_cache(maxsize=16384)
def _pieces(pattern: str) -> tuple[tuple[re.Pattern[str], int], ...] | None:
    """The pieces between the stars of a pattern, each with the number of characters that it matches; None for a pattern that Go refuses."""
    pieces, here, count, at = [], "", 0, 0
    while at < len(pattern):
        char, at = pattern[at], at + 1
        if char == "*":
            pieces.append((re.compile(here, re.DOTALL), count))
            here, count = "", 0
            continue
        if char == "[":
            if (found := _class(pattern, at)) is None:
                return None
            char, at = found
        elif char == "\\":
            if at == len(pattern):
                return None
            char, at = re.escape(pattern[at]), at + 1
        else:
            char = "." if char == "?" else re.escape(char)
        here, count = here + char, count + 1
    return (*pieces, (re.compile(here, re.DOTALL), count))


def _class(pattern: str, at: int) -> tuple[str, int] | None:
    """The class of characters that begins behind `[` at `at`, as a regular expression, and where it ends; None for one that does not."""
    negated = pattern.startswith("^", at)
    at += negated
    ranges = ""
    is_empty = True
    while is_empty or not pattern.startswith("]", at):
        ends = []
        for _ in range(2):
            escaped = pattern.startswith("\\", at)
            at += escaped
            if at >= len(pattern) or (not escaped and pattern[at] in "-]"):
                return None
            ends.append(pattern[at])
            at += 1
            if not pattern.startswith("-", at) or len(ends) == 2:
                break
            at += 1
        is_empty = False
        if ends[0] <= ends[-1]:
            ranges += f"{re.escape(ends[0])}-{re.escape(ends[-1])}"
    none, every = r"[^\s\S]", r"[\s\S]"
    if not ranges:
        return (every if negated else none), at + 1
    return f"[{'^' if negated else ''}{ranges}]", at + 1


def is_valid(pattern: str) -> bool:
    """Whether Go accepts a pattern of a path."""
    return all(_pieces(part) is not None for part in pattern.split("/"))


def names(pattern: str, path: str) -> bool:
    """Whether a pattern matches a whole path, part by part.

    >>> names("[[]id]/*.ts", "[id]/a.ts"), names("a[^b]", "ab"), names("{a}", "{a}")
    (True, False, True)
    """
    patterns, parts = pattern.split("/"), path.split("/")
    return len(patterns) == len(parts) and all(map(_matches, patterns, parts))


def _matches(pattern: str, part: str) -> bool:
    pieces = _pieces(pattern)
    if pieces is None:
        return False
    (first, length), *others = pieces
    if not others:
        return first.fullmatch(part) is not None
    last, last_length = others.pop()
    end = len(part) - last_length
    if first.match(part) is None:
        return False
    at = length
    for piece, _ in others:
        if (found := piece.search(part, at)) is None:
            return False
        at = found.end()
    return at <= end and last.fullmatch(part, end) is not None


class IgnoreFile:
    """The patterns of an ignore file: the last one that matches a path, or a directory above it, decides. `unread`: lines that are not followed. Of
    these, a pattern leaves out nothing, and one with `!` takes back everything. `remedy`: what to do about the first of them."""

    def __init__(self, text: str) -> None:
        self.unread: tuple[str, ...] = ()
        self.remedy = ""
        self._rules: list[tuple[Sequence[str] | None, bool]] = []
        self._known: dict[str, int] = {"": -1}
        for line in text.removeprefix("\ufeff").split("\n"):
            if not line.startswith("#") and (bare := line.strip()):
                self._read(bare)

    def _read(self, line: str) -> None:
        leaves_out = not line.startswith("!")
        pattern = posixpath.normpath(line.removeprefix("!").strip()).lstrip("/")
        if pattern in ("", "."):
            return
        parts = list(_parts(pattern))
        if remedy := _remedy(pattern, parts):
            self.unread += (line,)
            self.remedy = self.remedy or remedy
            if not leaves_out:
                self._rules.append((None, False))
            return
        self._rules.append((parts, leaves_out))

    def leaves_out(self, path: str) -> bool:
        """Whether a file or directory does not belong to the build's folder."""
        last = self._last(path)
        return last >= 0 and self._rules[last][1]

    def _last(self, path: str) -> int:
        """The number of the last rule that matches a path or a directory above it; -1 for none."""
        if (known := self._known.get(path)) is not None:
            return known
        above = self._last(posixpath.dirname(path))
        parts = path.split("/")
        later = range(len(self._rules) - 1, above, -1)
        found = next((n for n in later if _decides(self._rules[n][0], parts)), above)
        self._known[path] = found
        return found


def _decides(pattern: Sequence[str] | None, parts: Sequence[str]) -> bool:
    return pattern is None or _leads(pattern, parts)


def _remedy(pattern: str, parts: Sequence[str]) -> str:
    """How a pattern becomes one that is read; empty for one that is."""
    if not is_valid(pattern):
        return "end its brackets, and write something behind its last backslash"
    if DEEP in pattern and "\\" in pattern:
        return "take ** or the backslash away"
    odd = any(DEEP in part and part != DEEP for part in parts)
    return "let ** stand for a whole part" if odd else ""


def _parts(pattern: str) -> Iterator[str]:
    """The parts of a pattern. Two stars at the beginning of a part stand for directories, and at that of a pattern without other wildcards also for
    the beginning of a name; at the end of the pattern they are as one."""
    parts = pattern.split("/")
    is_suffix = not _WILD.search(pattern.removeprefix(DEEP))
    for number, part in enumerate(parts, 1):
        if part.startswith(DEEP) and part.strip("*"):
            yield DEEP
            part = ("*" if is_suffix else "") + part.removeprefix(DEEP)
        if number == len(parts) and part.endswith(DEEP) and part.strip("*"):
            part = part.removesuffix("*")
        yield part


def _leads(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a pattern matches a whole path."""
    if DEEP not in pattern:
        return len(pattern) == len(parts) and all(map(_matches, pattern, parts))
    reached = {0}
    for part in parts:
        for at, each in enumerate(pattern):
            if each == DEEP and at in reached and at + 1 < len(pattern):
                reached.add(at + 1)
        at_end = {len(pattern)} if pattern[-1] == DEEP and len(pattern) - 1 in reached else set()
        reached = at_end | {
            at if pattern[at] == DEEP else at + 1
            for at in reached
            if at < len(pattern) and (pattern[at] == DEEP or _matches(pattern[at], part))
        }
    return len(pattern) in reached
