"""Files that COPY and ADD of a Dockerfile take from the build's folder, read without a build."""

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.tasks.dockerfile import Instruction, expand, logical_lines, split
from sandboxes.docker_patterns import names

_FLAGS: Final = re.compile(r"(?:--\S+\s+)+")
_FROM: Final = re.compile(r"--from=(\S+)")
_WILD: Final = re.compile(r"[*?\[\\]")
_ONBUILD: Final = re.compile(r"(?:ONBUILD\s+)+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Copied:
    """One COPY or ADD. `sources`: paths in the folder, which may have wildcards; "" is all of it. `target`: as the line has it."""

    sources: tuple[str, ...]
    target: str

    def taken(self, path: str) -> str | None:
        """The file, or the directory above it, that a source names; None: the line does not take the file."""
        found = (each for source in self.sources for each in _with_parents(path) if names(source, each))
        return next(found, None)


def copied(line: int, logical: str) -> Copied | None:
    """One line of a Dockerfile; None for other instructions, files of another stage, and lines that no build accepts."""
    found = copied_from(line, logical)
    return found[1] if found is not None and not found[0] else None


def copied_from(line: int, logical: str) -> tuple[str, Copied] | None:
    """Like `copied`, also for files of another stage or image. The text is its name, in lower case; empty for files of the folder."""
    name, *others = logical.split(None, 1)
    if name.upper() not in ("COPY", "ADD") or not others:
        return None
    flags, rest = without_flags(others[0])
    named = _FROM.search(flags)
    *sources, target = _words(line, name, rest) or [""]
    # An empty word is refused by a build. It would stand for the whole folder here.
    given = tuple(posixpath.normpath(f"/{each}").lstrip("/") for each in sources if each)
    origin = "" if named is None else named[1].strip("\"'").lower()
    return (origin, Copied(given, target)) if given and target else None


def literal(path: str) -> str:
    """A source that names one path alone."""
    return _WILD.sub(r"\\\g<0>", path)


def triggered(logical: str) -> str:
    """The instruction of an ONBUILD, which runs in the stages that begin with this one; any other line as it is."""
    return _ONBUILD.sub("", logical, count=1)


def without_flags(rest: str) -> tuple[str, str]:
    """(the flags, what follows them) of the text behind an instruction's name."""
    flags = _FLAGS.match(rest)
    return ("", rest) if flags is None else (flags[0], rest[flags.end() :])


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


def _with_parents(path: str) -> Iterator[str]:
    """A path and the directories above it, the last one is the folder itself."""
    yield path
    while path:
        path = posixpath.dirname(path)
        yield path
