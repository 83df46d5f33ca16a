"""What a build needs to know of a Dockerfile: the images that it begins with. buildah reads the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sandboxes.base import ImageRefused
from sandboxes.images.architecture import machine
from sandboxes.images.documents import without_documents
from sandboxes.text_files import text_of

_FROM = re.compile(r"\s*FROM\s", re.IGNORECASE)
_ARG = re.compile(r"\s*ARG\s+([A-Za-z_]\w*)(?:=(.*))?$", re.IGNORECASE)
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^{}]*))?\})")

_LONGEST = 4096
"""Characters of the name of an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A FROM. `line`, `last`: where it begins and ends, from 0. `image`: as written, with variables expanded."""

    line: int
    last: int
    image: str
    alias: str


def read(dockerfile: bytes) -> tuple[list[str], list[Stage]]:
    """(the lines of a Dockerfile, its stages). ImageRefused for one that does not begin with FROM, or that is for another architecture."""
    try:
        lines = without_documents(text_of(dockerfile, "environment/Dockerfile").splitlines())
    except ValueError as error:
        raise ImageRefused(str(error)) from error
    stages: list[Stage] = []
    variables: dict[str, str] = {}
    at = 0
    while at < len(lines):
        last = at
        while last + 1 < len(lines) and lines[last].rstrip().endswith("\\"):
            last += 1
        text = " ".join(line.rstrip().rstrip("\\") for line in lines[at : last + 1])
        if _FROM.match(text):
            stages.append(_stage(at, last, text, variables))
        elif not stages and (found := _ARG.match(text)):
            variables[found[1]] = (found[2] or "").strip().strip("'\"")
        elif not stages and text.strip() and not text.lstrip().startswith("#"):
            break
        at = last + 1
    if not stages:
        raise ImageRefused("environment/Dockerfile must begin with FROM")
    return lines, stages


def _stage(line: int, last: int, text: str, variables: Mapping[str, str]) -> Stage:
    words = text.split()[1:]
    while words and words[0].startswith("--"):
        key, _, value = words.pop(0).partition("=")
        value = _expanded(
            value,
            {**variables, "BUILDPLATFORM": f"linux/{machine()}", "TARGETPLATFORM": f"linux/{machine()}"},
        )
        if key != "--platform" or value.split("/")[:2] != ["linux", machine()]:
            raise ImageRefused(
                f"environment/Dockerfile line {line + 1}: FROM has {key}={value}, and this machine builds for linux/{machine()} alone"
            )
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise ImageRefused(
            f"environment/Dockerfile line {line + 1}: FROM must be FROM image or FROM image AS name"
        )
    return Stage(
        line=line,
        last=last,
        image=_expanded(words[0], variables),
        alias=words[2].lower() if len(words) == 3 else "",
    )


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """ImageRefused for a long text: no image and no platform has such a name."""
    parts, length, at = [], 0, 0
    for found in _REFERENCE.finditer(word):
        value = variables.get(found[1] or found[2]) or found[3] or ""
        parts += [word[at : found.start()], value]
        length += len(parts[-2]) + len(value)
        at = found.end()
        if length > _LONGEST:
            break
    text = "".join([*parts, word[at:]])
    if len(text) > _LONGEST:
        raise ImageRefused(
            f"environment/Dockerfile: FROM has {text[:40]}… of more than {_LONGEST:,} characters: name an image"
        )
    return text


def bases(stages: Sequence[Stage]) -> list[str]:
    """The images that the stages begin with, each once: neither earlier stages nor `scratch`."""
    found: dict[str, None] = {}
    aliases: set[str] = set()
    for stage in stages:
        if stage.image != "scratch" and stage.image.lower() not in aliases:
            found.setdefault(stage.image)
        aliases.add(stage.alias)
    return list(found)


def written(
    lines: Sequence[str], stages: Sequence[Stage], base: Callable[[str], str], variables: Sequence[str]
) -> bytes:
    """The Dockerfile with other names in FROM, and with `variables` declared for every stage."""
    result = list(lines)
    known = set(bases(stages))
    for stage in reversed(stages):
        name = base(stage.image) if stage.image in known else stage.image
        text = f"FROM {name}" + (f" AS {stage.alias}" if stage.alias else "")
        result[stage.line : stage.last + 1] = [text, *([f"ARG {' '.join(variables)}"] if variables else [])]
    return ("\n".join(result) + "\n").encode()


def short_name(name: str) -> str:
    """The name of an image without its registry where that is the usual one, with its tag.

    >>> short_name("debian"), short_name("docker.io/library/python:3.11"), short_name("ghcr.io/a/b:1")
    ('debian:latest', 'python:3.11', 'ghcr.io/a/b:1')
    """
    short = name.removeprefix("docker.io/").removeprefix("library/")
    return short if ":" in short.rpartition("/")[2] or "@" in short else f"{short}:latest"
