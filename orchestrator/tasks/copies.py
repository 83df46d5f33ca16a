"""Files that COPY and ADD of a Dockerfile take from the build's folder, read without a build."""

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from orchestrator.tasks.dockerfile import Instruction, expand, logical_lines, split

_FLAGS: Final = re.compile(r"(?:--\S+\s+)+")


@dataclass(frozen=True, slots=True)
class Copied:
    """One COPY or ADD. `sources`: paths in the folder, which may have wildcards; "" is all of it. `target`: as the line has it."""

    sources: tuple[str, ...]
    target: str

    def taken(self, path: str) -> str | None:
        """The file, or the directory above it, that a source names; None: the line does not take the file."""
        found = (each for source in self.sources for each in _with_parents(path) if _names(source, each))
        return next(found, None)


def copied(line: int, logical: str) -> Copied | None:
    """One line of a Dockerfile; None for other instructions, files of another stage, and lines that no build accepts."""
    name, *others = logical.split(None, 1)
    if name.upper() not in ("COPY", "ADD") or not others:
        return None
    flags = _FLAGS.match(others[0])
    if flags is not None and "--from=" in flags[0]:
        return None
    rest = others[0] if flags is None else others[0][flags.end() :]
    *sources, target = _words(line, name, rest) or [""]
    # An empty word is refused by a build. It would stand for the whole folder here.
    given = tuple(posixpath.normpath(f"/{each}").lstrip("/") for each in sources if each)
    return Copied(given, target) if given and target else None


def copies(text: str) -> Iterator[Copied]:
    """Those of all stages, in order. ValueError for a Dockerfile that cannot be read."""
    for line, logical in logical_lines(text):
        if (found := copied(line, logical)) is not None:
            yield found


def _words(line: int, name: str, rest: str) -> Sequence[str]:
    """The sources and the target, without quotes. A word with a variable stays as written: it names no file."""
    here = Instruction(line=line, name=name.upper(), rest=rest, words=(), flags={}, is_json=False)
    if rest.startswith("["):
        try:
            listed = json.loads(rest)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list) and all(isinstance(word, str) for word in listed):
            return listed
    try:
        return [word if "$" in word else expand(here, word, {}) for word in split(here, rest)]
    except ValueError:
        return ()


def _names(source: str, path: str) -> bool:
    patterns, parts = source.split("/"), path.split("/")
    return len(patterns) == len(parts) and all(map(fnmatchcase, parts, patterns))


def _with_parents(path: str) -> Iterator[str]:
    """A path and the directories above it, the last one is the folder itself."""
    yield path
    while path:
        path = posixpath.dirname(path)
        yield path
