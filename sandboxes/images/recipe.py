"""The bases of a Dockerfile for a build: the images that it begins with, or takes files from. buildah reads the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile

from sandboxes.base import ImageRefused
from sandboxes.images.architecture import is_here, machine, platform_variables
from sandboxes.images.documents import without_documents
from sandboxes.images.lines import instructions, is_passed_over, last_line
from sandboxes.images.oci import VOLUME_LABEL
from sandboxes.images.words import MAX_ARGUMENT, Arguments, TooLongError
from sandboxes.text_files import lines_of, text_of

_FROM = re.compile(r"FROM\s", re.IGNORECASE)
_ARG = re.compile(r"ARG\s+(.*)$", re.IGNORECASE | re.DOTALL)
_SPACE = r"(?:[ \t]|\\[ \t]*\n)+"
_FLAGS = re.compile(rf"\s*(RUN|COPY|ADD)((?:{_SPACE}--[a-z][^\s\\]*)+)", re.IGNORECASE)
"""An instruction with its flags, which may lie in several lines."""
_FROM_IMAGE = re.compile(r"(?<=--from=)[^\s\\]+|(?<=,from=)[^\s,\\]+|(?<=--mount=from=)[^\s,\\]+")
_VOLUME = re.compile(r"\s*VOLUME\s+(.*)$", re.IGNORECASE | re.DOTALL)
_HEALTHCHECK = re.compile(r"HEALTHCHECK(?:\s|$)", re.IGNORECASE)
_ESCAPE = re.compile(r"\s*#\s*escape\s*=\s*[^\s\\]", re.IGNORECASE)
_KNOWN = frozenset(
    {
        *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK"),
        *("LABEL", "MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
    }
)
_WORD = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\])+""")
_LINK = re.compile(rf"{_SPACE}--link(?:=\w+)?(?=[\s\\])")
"""A flag that older versions of buildah refuse. It changes how layers are kept, and nothing of what is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A FROM. `line`, `last`: where it begins and ends, from 0. `image`: as written, with variables expanded. `taken`: the images from which its
    instructions take files, by COPY --from or by a mount."""

    line: int
    last: int
    image: str
    alias: str
    taken: tuple[str, ...] = ()


def read(dockerfile: bytes) -> tuple[list[str], list[Stage]]:
    """(the lines of a Dockerfile, its stages). ImageRefused for one that does not begin with FROM, or that is for another architecture.

    Its VOLUME instructions are LABEL instructions, whose variables buildah expands likewise and `oci` reads: buildah forgets what later instructions
    write into a volume, and Docker keeps it. HEALTHCHECK is left out: nothing runs it in a sandbox, and its newer flags fail in older buildahs."""
    try:
        with _short("an ARG"):
            lines = without_documents(lines_of(text_of(dockerfile, "environment/Dockerfile")))
    except ValueError as error:
        raise ImageRefused(str(error)) from error
    stages: list[Stage] = []
    variables = Arguments(platform_variables())
    other_escape = any(map(_ESCAPE.match, takewhile(is_passed_over, lines)))  # joins lines in another way
    for each in instructions(list(lines)):
        at, last, text = each.first, each.last, each.text
        if stages and not other_escape:
            _check_name(text.split(None, 1)[0], at)
        if _FROM.match(text):
            stages.append(_stage(at, last, text, variables))
        elif stages and (volume := _VOLUME.match(text)):
            lines[at : last + 1] = [_labels(volume[1], at), *[""] * (last - at)]
        elif stages and _HEALTHCHECK.match(text):
            lines[at : last + 1] = [""] * (last + 1 - at)
        elif stages:
            _take(stages, "\n".join(lines[at : last + 1]))
        elif found := _ARG.match(text):
            with _short(found[1]):
                variables.read(found[1])
        else:
            break
    if not stages:
        raise ImageRefused("environment/Dockerfile must begin with FROM")
    return lines, stages


def _check_name(name: str, line: int) -> None:
    """ImageRefused for an instruction that no engine knows."""
    if name.upper() not in _KNOWN:
        raise ImageRefused(
            f"environment/Dockerfile line {line + 1}: {name[:40]} is not an instruction: correct it, end the line above with \\ if it goes on here,"
            " or write the lines of a here-document below RUN <<EOF, up to a line EOF"
        )


def _labels(volumes: str, line: int) -> str:
    """The LABEL for what a VOLUME names; nothing for an empty one."""
    try:
        listed = json.loads(volumes)
    except (ValueError, RecursionError):
        listed = None
    words: list[str] = _WORD.findall(volumes)
    if isinstance(listed, list):
        words = [json.dumps(word, ensure_ascii=False) for word in listed if isinstance(word, str)]
    pairs = [f"{VOLUME_LABEL}{line}.{at}={word}" for at, word in enumerate(words)]
    return " ".join(["LABEL", *pairs]) if pairs else ""


def _take(stages: list[Stage], text: str) -> None:
    """Add the images from which an instruction takes files to the last stage. Earlier stages are none, nor is a name with a variable, which no
    build expands."""
    named = dict.fromkeys(name for name in _named(text) if "$" not in name)
    if named:
        earlier = {*(stage.alias for stage in stages[:-1]), *map(str, range(len(stages) - 1)), ""}
        taken = {
            **dict.fromkeys(stages[-1].taken),
            **{name: None for name in named if name.lower() not in earlier},
        }
        stages[-1] = replace(stages[-1], taken=tuple(taken))


def _named(text: str) -> Iterator[str]:
    """The source that the flags of an instruction name."""
    if flags := _FLAGS.match(text):
        yield from _FROM_IMAGE.findall(flags[2])


def _stage(line: int, last: int, text: str, variables: Arguments) -> Stage:
    words = text.split()[1:]
    while words and words[0].startswith("--"):
        key, _, value = words.pop(0).partition("=")
        value = _expanded(value, variables)
        if key != "--platform" or not is_here(value):
            raise ImageRefused(
                f"environment/Dockerfile line {line + 1}: FROM has {key}={value}, and this machine builds for linux/{machine()} alone"
            )
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise ImageRefused(
            f"environment/Dockerfile line {line + 1}: FROM must be FROM image or FROM image AS name"
        )
    image = _expanded(words[0], variables)
    if not image:
        raise ImageRefused(
            f"environment/Dockerfile line {line + 1}: FROM {words[0]} names no image: give its ARG above FROM a default"
        )
    return Stage(
        line=line,
        last=last,
        image=image,
        alias=words[2].lower() if len(words) == 3 else "",
    )


@contextmanager
def _short(word: str) -> Iterator[None]:
    """ImageRefused for a long text: no image and no platform has such a name."""
    try:
        yield
    except TooLongError as error:
        raise ImageRefused(
            f"environment/Dockerfile: FROM has {word[:40]}… of more than {MAX_ARGUMENT:,} characters: name an image"
        ) from error


def _expanded(word: str, variables: Arguments) -> str:
    with _short(word):
        text = variables.expanded(word)
        if len(text) > MAX_ARGUMENT:
            raise TooLongError
    return text


def bases(stages: Sequence[Stage]) -> list[str]:
    """The images that the stages begin with or take files from, each once: neither earlier stages nor `scratch`."""
    found: dict[str, None] = {}
    aliases: set[str] = set()
    for stage in stages:
        if stage.image != "scratch" and stage.image.lower() not in aliases:
            found.setdefault(stage.image)
        found |= dict.fromkeys(stage.taken)
        aliases.add(stage.alias)
    return list(found)


def line_of(stages: Sequence[Stage]) -> list[Stage]:
    """The last stage, and those that it begins with, the first one first."""
    found: list[Stage] = []
    wanted = len(stages) - 1
    while wanted >= 0:
        found.insert(0, stages[wanted])
        name = stages[wanted].image.lower()
        wanted = next((at for at in range(wanted - 1, -1, -1) if stages[at].alias == name), -1)
    return found


def written(
    lines: Sequence[str], stages: Sequence[Stage], base: Callable[[str], str], variables: Sequence[str]
) -> bytes:
    """The Dockerfile with other names of images, and with `variables` declared for every stage."""
    result = list(lines)
    ends = [stage.line for stage in stages[1:]] + [len(lines)]
    for number, (stage, end) in reversed(list(enumerate(zip(stages, ends, strict=True)))):
        # A stage has one name in lower case: to buildah, Builder and builder are two.
        stages_above = {other.alias for other in stages[:number] if other.alias}
        name = stage.image.lower()
        if stage.image != "scratch" and name not in stages_above:
            name = base(stage.image)
        text = f"FROM {name}" + (f" AS {stage.alias}" if stage.alias else "")
        names = {taken: base(taken) for taken in stage.taken}
        result[stage.last + 1 : end] = _renamed(lines[stage.last + 1 : end], names, stages_above)
        result[stage.line : stage.last + 1] = [text, *([f"ARG {' '.join(variables)}"] if variables else [])]
    return ("\n".join(result) + "\n").encode()


def _renamed(lines: Sequence[str], names: Mapping[str, str], above: Collection[str]) -> list[str]:
    """The instructions of a stage with other names of images, and of the stages `above` it, in their flags, and without `--link`."""

    def other_name(found: re.Match[str]) -> str:
        written = found[0]
        return names.get(written, written.lower() if written.lower() in above else written)

    found: list[str] = []
    at = 0
    while at < len(lines):
        last = last_line(lines, at)
        text = "\n".join(lines[at : last + 1])
        if flags := _FLAGS.match(text):
            other = _FROM_IMAGE.sub(other_name, flags[2])
            if flags[1].upper() != "RUN":
                other = _LINK.sub(" ", f"{other} ")[:-1]
            text = text[: flags.start(2)] + other + text[flags.end(2) :]
        found += text.split("\n")
        at = last + 1
    return found


def short_name(name: str) -> str:
    """The name of an image without its registry where that is the usual one, with its tag.

    >>> short_name("debian"), short_name("docker.io/library/python:3.11"), short_name("ghcr.io/a/b:1")
    ('debian:latest', 'python:3.11', 'ghcr.io/a/b:1')
    """
    short = name.removeprefix("docker.io/").removeprefix("library/")
    return short if ":" in short.rpartition("/")[2] or "@" in short else f"{short}:latest"
