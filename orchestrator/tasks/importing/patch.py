"""The paths of a patch that git made: those that it changes, those of files that only it makes, and those that it removes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import check_path

_HUNK: Final = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NAME: Final = r'("(?:[^"\\]|\\.)*"|[^\t]+)'
_SIDE: Final = re.compile(rf"(---|\+\+\+) {_NAME}")
_MOVED: Final = re.compile(rf"(?:rename|copy) (from|to) {_NAME}")
_DIFF: Final = re.compile(r'diff --git ("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)')
_WITHOUT_CONTENT: Final = re.compile(r"Binary files .* differ")
_DELETED: Final = re.compile(r"index (?:[0-9a-f]{40}|[0-9a-f]{64})\.\.0+")
_ESCAPED: Final = re.compile(rb"\\(?:([0-3][0-7]{2})|(.))", re.DOTALL)
_CONTROLS: Final = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_NOTHING: Final = "/dev/null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The paths that a patch changes, those of them that it makes, and those that are gone after it."""

    text: str
    paths: tuple[str, ...]
    new: tuple[str, ...]
    gone: frozenset[str]

    @classmethod
    def of(cls, text: str, column: str) -> "Patch":
        """Read a unified diff. ValueError if it changes nothing, a path outside of the repository, or a binary file whose content it lacks."""
        found = _Paths()
        try:
            found.read(text)
            for path in found.named:
                check_path(path)
        except ValueError as error:
            raise ValueError(f"{column}: {error}") from None
        if not found.named:
            raise ValueError(f"{column} is not a patch that git made")
        for path in found.named:
            if ".git" in path.split("/"):
                raise ValueError(f"{column}: {quoted(path)} is a file of git itself")
        ended = text if text.endswith("\n") else text + "\n"
        new = tuple(path for path in found.made if path not in found.there)
        return cls(
            text=ended, paths=tuple(found.named), new=new, gone=frozenset(found.gone - found.made.keys())
        )


@dataclass(slots=True, kw_only=True)
class _Paths:
    """Paths that the lines outside of hunks name, in order. `there`: files that the patch finds; `made`: those that it leaves and may have found;
    `gone`: those that it removes."""

    named: dict[str, None] = field(default_factory=dict)
    there: dict[str, None] = field(default_factory=dict)
    made: dict[str, None] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def read(self, text: str) -> None:
        """ValueError for a binary file without its content."""
        path, index, before = "", "", ""  # of the file whose header is read
        for line in _outside(text):
            if line.startswith("diff --git "):
                path, index = self._of_diff(line), ""
            elif line.startswith("index "):
                index = line
            elif line.startswith("new file mode ") and path:
                self.made[path] = None
            elif line.startswith("deleted file mode ") and path:
                self.there[path] = None
                self.gone.add(path)
            elif found := _MOVED.fullmatch(line):
                moved = _unquoted(found[2])
                self.named[moved] = None
                (self.there if found[1] == "from" else self.made)[moved] = None
                if line.startswith("rename from "):
                    self.gone.add(moved)
            elif found := _SIDE.match(line):
                side = _stripped(found[2])
                if side == _NOTHING and found[1] == "+++":
                    self.gone.add(before)
                elif side != _NOTHING:
                    self.named[side] = None
                    if found[1] == "---":
                        self.there[side] = None
                    elif before == _NOTHING:
                        self.made[side] = None
                before = side
            elif _WITHOUT_CONTENT.fullmatch(line) and not _DELETED.match(index):
                raise ValueError(
                    f"it lacks the content of the binary file {quoted(path or line)}: make it with git diff --binary"
                )

    def _of_diff(self, line: str) -> str:
        """The path after the patch; empty where the lines of a rename name it."""
        if (found := _DIFF.fullmatch(line)) is not None:
            old, new = _stripped(found[1]), _stripped(found[2])
        else:  # with spaces: a name that is the same on both sides, or those of a rename, which has lines of its own
            both = line.removeprefix("diff --git ")
            old, new = _stripped(both[: len(both) // 2]), _stripped(both[len(both) // 2 + 1 :])
            if old != new:
                return ""
        self.named |= {old: None, new: None}
        return new


def _outside(text: str) -> Iterator[str]:
    """The lines that no hunk holds. Only newlines end a line: files hold other separators, such as form feeds."""
    old_lines = new_lines = 0  # of the hunk, still to come
    for line in text.split("\n"):
        if old_lines > 0 or new_lines > 0:
            old_lines -= not line.startswith(("+", "\\"))
            new_lines -= not line.startswith(("-", "\\"))
        elif found := _HUNK.match(line):
            old_lines, new_lines = int(found[1] or 1), int(found[2] or 1)
        else:
            yield line.removesuffix("\r")


def _stripped(name: str) -> str:
    """A name of one side without its first folder (`a/`, `b/`), as `git apply` reads it."""
    plain = _unquoted(name)
    return plain if plain == _NOTHING else re.sub(r"^[^/]+/", "", plain)


def _unquoted(name: str) -> str:
    """A name without git's quotes, which stand around one with control characters, quotes or, by default, letters outside of ASCII."""
    if not name.startswith('"'):
        return name
    body = _ESCAPED.sub(_plain, name[1:-1].encode(errors="surrogateescape"))
    return body.decode(errors="surrogateescape")


def _plain(escaped: re.Match[bytes]) -> bytes:
    if escaped[1] is not None:
        return bytes([int(escaped[1], 8)])
    return _CONTROLS.get(escaped[2], escaped[2])
