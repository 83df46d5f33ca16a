r"""A Dockerfile as instructions: comments, continuation lines, quotes and the JSON form, without features that need an engine.

It may contain FROM, WORKDIR, COPY and ENV; `environment.py` gives their meaning. `NO_EFFECT` is passed over. Errors are ValueError, one
sentence each, that names the line and the instruction:

>>> [instruction.words for instruction in parse('FROM debian:12\nENV A=1 \\\n  B="two words"  # no comment')]
[('debian:12',), ('A=1', 'B="two words"', '#', 'no', 'comment')]
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from orchestrator.contracts.quote import cut, quoted
from orchestrator.tasks.sizes import MAX_INSTRUCTIONS, VARIABLE_BYTES, VARIABLES_BYTES, TooLarge, too_many
from sandboxes.images import words
from sandboxes.images.architecture import platform_variables
from sandboxes.images.lines import instructions
from sandboxes.text_files import lines_of

KNOWN: Final = ("FROM", "WORKDIR", "COPY", "ENV")
NO_EFFECT: Final = ("CMD", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "SHELL", "STOPSIGNAL")
"""They change nothing in a sandbox without an image: a task's programs take the place of CMD, in Harbor as well, and SHELL counts for RUN alone."""
CONTAINERS: Final = (
    "only a sandbox provider with container support (`containers`) can build that, and the run's provider has none"
    " (bubblewrap has it with sandbox.images.directory)"
)

_AT: Final = "environment/Dockerfile "
_MAX_NAMED: Final = 4
_TOO_LONG: Final = (
    f"more than {VARIABLE_BYTES:,} bytes, with which no program starts: put long values into files"
)

_DIRECTIVE = re.compile(r"#\s*escape\s*=\s*(\S+)", re.IGNORECASE)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction. `line` is 1-based; `words` are its arguments as written, including quotes; `flags` the `--key=value` before them."""

    line: int
    name: str
    rest: str
    words: tuple[str, ...]
    flags: Mapping[str, str]
    is_json: bool

    @property
    def at(self) -> str:
        """Its place, as sentences begin."""
        return f"{_AT}line {self.line}: {cut(self.name, 30)}"

    def refuse(self, why: str) -> NoReturn:
        """Raise the ValueError that names this instruction."""
        raise ValueError(f"{self.at} {why}")


class DockerfileError(ValueError):
    """All errors of a Dockerfile together, so that its author can fix them at once. `read`: the instructions that could be parsed."""

    def __init__(self, wrong: Sequence[str], read: Sequence[Instruction] = ()) -> None:
        self.wrong, self.read = tuple(wrong), tuple(read)
        first, *others = dict.fromkeys(wrong)
        messages = [each.removeprefix(_AT).replace(f": {CONTAINERS}", "") for each in others[:_MAX_NAMED]]
        more = [f"and {len(others) - _MAX_NAMED} more"] if len(others) > _MAX_NAMED else []
        super().__init__("; ".join([first, *messages, *more]))


def parse(text: str) -> list[Instruction]:
    """The instructions in order. DockerfileError for unknown or unreadable ones."""
    found, wrong = [], []
    for line, logical in logical_lines(text):
        if logical.split(None, 1)[0].upper() in NO_EFFECT:
            continue
        try:
            found.append(_instruction(line, logical))
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        raise DockerfileError(wrong, found)
    return found


def logical_lines(text: str) -> list[tuple[int, str]]:
    """(line, text) of each instruction: without comments, blank lines and here-documents, continuation lines joined."""
    lines = lines_of(text)
    _check_directives(lines)
    found: list[tuple[int, str]] = []
    for each in instructions(lines):
        found.append((each.first + 1, each.text))
        if len(found) > MAX_INSTRUCTIONS:
            raise TooLarge(
                f"{_AT}has more than {MAX_INSTRUCTIONS:,} instructions: write several variables into one ENV, or use fewer of them"
            )
    return found


def _check_directives(lines: Sequence[str]) -> None:
    """ValueError for another escape character than the usual one: comments at the beginning may name it."""
    for number, line in enumerate(lines, start=1):
        if not (stripped := line.strip()).startswith("#"):
            return
        if (directive := _DIRECTIVE.match(stripped)) and directive[1] != "\\":
            raise ValueError(
                f"environment/Dockerfile line {number}: the escape character must be \\, got {directive[1]}"
            )


def _instruction(line: int, text: str) -> Instruction:
    name, _, rest = text.partition(" ") if " " in text.replace("\t", " ") else (text, "", "")
    if "\t" in name:
        name, _, rest = text.partition("\t")
    bare = Instruction(line=line, name=name.upper(), rest=rest.strip(), words=(), flags={}, is_json=False)
    if bare.name == "ENTRYPOINT":
        if command := entry_point(bare):
            refuse_entry_point(bare, command)
        return bare
    if bare.name not in KNOWN:
        known = f"{', '.join(KNOWN[:-1])} and {KNOWN[-1]}"
        bare.refuse(f"is not one of {known}: {CONTAINERS}")
    flags, end = {}, 0
    while flag := _FLAG.match(bare.rest, end):
        flags[flag[1]] = flag[2] or ""
        end = flag.end()
    rest = bare.rest[end:]
    if bare.name == "COPY" and re.search(r"(?:^|\s)<<", rest):
        bare.refuse(f"has a here-document: {CONTAINERS}")
    if rest.startswith("["):
        try:
            listed = json.loads(rest)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list) and all(isinstance(word, str) for word in listed):
            return Instruction(
                line=line, name=bare.name, rest=rest, words=tuple(listed), flags=flags, is_json=True
            )
    return Instruction(
        line=line, name=bare.name, rest=rest, words=split(bare, rest), flags=flags, is_json=False
    )


def split(instruction: Instruction, text: str) -> tuple[str, ...]:
    """Split `text` at white space, but not within quotes or after a backslash; both stay in the words."""
    try:
        return words.split(text)
    except words.OpenQuoteError as error:
        instruction.refuse(f"has a quote {error} without its end")


def expand(
    instruction: Instruction, word: str, variables: Mapping[str, str | None], *, what: str = "a word"
) -> str:
    """A word without its quotes and with its variables (`sandboxes.images.words.expand`); an unknown variable is empty.

    ValueError for other forms of `${…}`; TooLarge for a longer text than a variable may have; `what` it is.
    """
    try:
        return words.expand(word, variables, VARIABLE_BYTES)
    except words.UnreadableError as error:
        instruction.refuse(
            f"has {quoted(str(error))}, which is none of ${{NAME}}, ${{NAME:-default}} and ${{NAME:+other}}"
        )
    except words.TooLongError as error:
        raise TooLarge(f"{instruction.at} gives {what} {_TOO_LONG}") from error


_VALUE_OF = re.compile(r"\$\{?([A-Za-z_]\w*)")


def variables_in(instruction: Instruction) -> list[tuple[str, str | None]]:
    """The names and values, as written, of an ENV or ARG; None: an ARG without a value. ValueError for a quote without its end."""
    given = split(instruction, instruction.rest)
    if instruction.name == "ENV" and given and "=" not in given[0]:
        return [(given[0], instruction.rest[len(given[0]) :].strip())]
    pairs = [word.partition("=") for word in given]
    return [(name, value if equals else None) for name, equals, value in pairs]


def check_growth(text: str) -> None:
    """TooLarge if ENV and ARG of a Dockerfile that is built could give a variable more than it may have. The bound adds the lengths of what a value
    names, and expands nothing."""
    sizes: dict[str, int] = {}
    for here, pairs in _assignments(text):
        for variable, given in pairs:
            value = given or ""
            size = len(value) + sum(sizes.get(found[1], 0) for found in _VALUE_OF.finditer(value))
            if size > VARIABLE_BYTES:
                raise TooLarge(f"{here.at} gives {cut(variable, 60)} {_TOO_LONG}")
            sizes[variable] = size
        if sum(sizes.values()) > VARIABLES_BYTES:
            raise TooLarge(f"{here.at}: {too_many()}")


def variables_set(text: str) -> Iterator[tuple[Instruction, str]]:
    """The variables that ENV sets, in all stages, with their instruction. Lines that no build accepts are passed over."""
    for here, pairs in _assignments(text):
        if here.name == "ENV":
            yield from ((here, variable) for variable, _ in pairs)


def _assignments(text: str) -> Iterator[tuple[Instruction, list[tuple[str, str | None]]]]:
    """Each ENV and ARG, with its names and values as written."""
    for line, logical in logical_lines(text):
        name, *others = logical.split(None, 1)
        rest = others[0] if others else ""
        here = Instruction(line=line, name=name.upper(), rest=rest, words=(), flags={}, is_json=False)
        if here.name not in ("ENV", "ARG") or not rest:
            continue
        try:
            pairs = variables_in(here)
        except ValueError:  # a build refuses it as well
            continue
        yield here, pairs


_STAGE = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?$", re.IGNORECASE)
_INIT = r"(?:\S*/)?(?:tini|dumb-init|docker-init|catatonit)(?: -\S+)*(?: --)?"
_OPTION = (
    r" [-+][a-np-zA-NP-Z]+| [-+][a-np-zA-NP-Z]*[oO][a-zA-Z]* [a-z_]+"
    r"| --(?:debugger|login|noediting|noprofile|norc|posix|restricted|verbose)?(?= |$)"
)
"""Options of a shell that name no file which it would run."""
_SHELL = rf"(?:(?:\S*/)?env )?(?:\S*/)?(?:ba|da|z)?sh(?:{_OPTION})*"
_WAITS = (
    r"(?:exec )?(?:(?:\S*/)?sleep \S+|(?:\S*/)?tail -f /dev/null|(?:\S*/)?cat)"
    r"|while (?:true|:|sleep \S+) ?; do (?:sleep \S+|:) ?; done"
)
_IDLE = re.compile(rf"(?:{_INIT}(?: |$))?(?:{_SHELL}(?: |$))?(?:{_WAITS})?")
"""Entry points that start nothing: an init, a shell and a wait, each of them or none."""


def arguments_of(lines: Iterable[tuple[int, str]]) -> words.Arguments:
    """The variables of a Dockerfile before its first FROM, from its logical lines, and those of the builder itself."""
    found = words.Arguments(platform_variables())
    for _, logical in lines:
        name, *rest = logical.split(None, 1)
        if name.upper() == "FROM":
            break
        if name.upper() == "ARG" and rest:
            with suppress(words.TooLongError):  # a build refuses it as well
                found.read(rest[0])
    return found


def stage_of(line: str, arguments: words.Arguments) -> tuple[str, str]:
    """(the image, the name of the stage) of a FROM, in lower case; both empty for one that cannot be read."""
    found = _STAGE.match(line)
    if found is None:
        return "", ""
    image = found[1]
    with suppress(words.TooLongError):
        image = arguments.expanded(image)
    return image.lower(), (found[2] or "").lower()


def entry_point(instruction: Instruction) -> str:
    """The program that an ENTRYPOINT starts, for people; empty for one that only waits."""
    try:
        given = json.loads(instruction.rest)
    except (ValueError, RecursionError):
        given = instruction.rest.split()
    command = " ".join(map(str, given)) if isinstance(given, list) else str(given)
    return "" if _IDLE.fullmatch(command.strip()) else command


def refuse_entry_point(
    instruction: Instruction, command: str, instead: str = "[environment].healthcheck"
) -> NoReturn:
    """ValueError, one sentence: no sandbox runs it. `instead`: where the task starts what it needs."""
    instruction.refuse(
        f"starts {quoted(command)}, and no program of an image is started: remove it, and start what the task needs in {instead}"
    )
