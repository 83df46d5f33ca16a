"""Paths that a RUN of a Dockerfile may copy, move or link to another place of the image, read without a build."""

import json
import posixpath
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

_COMMANDS: Final = re.compile(r"&&|\|\||[;\n]")
_CARRIES: Final = re.compile(
    r"(?:^|[\s(/\"'`])(?:cp|mv|ln|rsync)(?=[\s\"'])"
    r"|(?:^|[|(`{]|\b(?:sudo|then|do|exec|xargs)\s)\s*(?:[^\s|(`{]*/)?install(?=\s)"  # not that of a package manager
)
_ENTERS: Final = re.compile(r"(?:\bcd|\bpushd|\s-C)\s+([^\s;&|)]+)")
_SCRIPT: Final = re.compile(r"(?:\S*sh(?:\s+-\S+)*\s+)?<<")
"""A here-document that is the program: its text is not read here."""
_MAX_PATHS: Final = 200
"""Paths of one RUN and of a stage. Instead of more of them it is "/", so that the work for a Dockerfile is bounded."""
_BETWEEN: Final = re.compile(r"[\s\"']+")
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
_SPACE: Final = re.compile(r"\s")
_OPEN: Final = re.compile(r"[*?\[\]{}()\\$`~]")
"""In names that stand for others in a shell."""
_WILD: Final = re.compile(r"[*?\[\\$]")
"""In sources of COPY."""


def carried(command: str, work: str | None) -> tuple[str, ...]:
    """Absolute paths whose files a RUN may bring to another place; "/" where only a shell can tell them. `command`: without the flags of RUN;
    `work`: its directory, None: that of the base image."""
    return together(tuple(islice(_carried(command, work), 10 * _MAX_PATHS)))


def together(*paths: tuple[str, ...]) -> tuple[str, ...]:
    """The paths of several, once each; "/" alone for too many."""
    found = tuple(dict.fromkeys(path for each in paths for path in each))
    return (
        found if len(found) <= _MAX_PATHS and all(len(each) < 10 * _MAX_PATHS for each in paths) else ("/",)
    )


def _carried(command: str, work: str | None) -> Iterator[str]:
    if _SCRIPT.match(command):
        yield "/"
        return
    command = _QUOTED.sub(_joined, _written_out(command))
    top = work or "/"
    entered = (posixpath.join(top, found.strip("\"'")) for found in _ENTERS.findall(command))
    places = tuple(dict.fromkeys((top, *entered)))
    for each in _COMMANDS.split(command):
        if not _CARRIES.search(each):
            continue
        words = [word for word in _BETWEEN.split(each) if word and not word.startswith("-")]
        names_target = re.search(r"\s(?:-\w*t|--target-directory)\b", each) is not None
        for word in words if names_target else words[:-1]:
            yield from (fixed(posixpath.join(place, word)) for place in places)


def _written_out(command: str) -> str:
    """The words of a list as a shell's line."""
    try:
        words = json.loads(command) if command.startswith("[") else None
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return command
    return " ".join(f'"{word}"' for word in words)


def _joined(quoted: re.Match[str]) -> str:
    """A text in quotes: if it is a name and not a command, its spaces do not end it."""
    return quoted[0] if _CARRIES.search(quoted[0]) else _SPACE.sub("?", quoted[0])


def fixed(path: str) -> str:
    """An absolute path up to its first part that stands for several names in a shell."""
    return _up_to(path, _OPEN)


def fixed_source(path: str) -> str:
    """As `fixed`, for a source of COPY."""
    return _up_to(path, _WILD)


def _up_to(path: str, several: re.Pattern[str]) -> str:
    parts = posixpath.normpath(f"/{path}").lstrip("/").split("/")
    end = next((at for at, part in enumerate(parts) if several.search(part)), len(parts))
    return "/" + "/".join(parts[:end])


def overlap(one: str, other: str) -> bool:
    """Whether one of two absolute paths is, or lies below, the other."""
    return lies_in(one, other) or lies_in(other, one)


def lies_in(path: str, directory: str) -> bool:
    """Whether a path is a directory or lies below it."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")
