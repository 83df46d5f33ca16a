r"""A Dockerfile as instructions: comments, continuation lines, quotes and the JSON form, without features that need an engine.

It may contain FROM, WORKDIR, COPY and ENV; `environment.py` gives their meaning. `NO_EFFECT` is passed over. Errors are ValueError, one
sentence each, that names the line and the instruction:

>>> [instruction.words for instruction in parse('FROM debian:12\nENV A=1 \\\n  B="two words"  # no comment')]
[('debian:12',), ('A=1', 'B="two words"', '#', 'no', 'comment')]
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from orchestrator.contracts.quote import cut, quoted
from orchestrator.tasks.sizes import MOST_INSTRUCTIONS, VARIABLE_BYTES, VARIABLES_BYTES, TooLarge, too_many

KNOWN: Final = ("FROM", "WORKDIR", "COPY", "ENV")
NO_EFFECT: Final = ("CMD", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "SHELL", "STOPSIGNAL")
"""They change nothing in a sandbox without an image: a task's programs take the place of CMD, in Harbor as well, and SHELL counts for RUN alone."""
CONTAINERS: Final = (
    "only a sandbox provider with container support (`containers`) can build that, and the run's provider has none"
    " (bubblewrap has it with sandbox.images.directory)"
)

_AT: Final = "environment/Dockerfile "
_MOST_NAMED: Final = 4
_TOO_LONG: Final = (
    f"more than {VARIABLE_BYTES:,} bytes, with which no program starts: put long values into files"
)

_TAKES_DOCUMENTS = re.compile(r"(?:RUN|COPY|ADD)\s", re.IGNORECASE)
_DOCUMENT = re.compile(r"(?:^|[\s|;&(])\d?<<-?(['\"]?)([A-Za-z_]\w*)\1(?=$|[\s|;&)])")
_DIRECTIVE = re.compile(r"#\s*escape\s*=\s*(\S+)", re.IGNORECASE)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
_REFERENCE = re.compile(r"\\(.)|\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::([-+])([^{}]*))?\})", re.DOTALL)


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
        messages = [each.removeprefix(_AT).replace(f": {CONTAINERS}", "") for each in others[:_MOST_NAMED]]
        more = [f"and {len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
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
    found: list[tuple[int, str]] = []
    start = 0  # the line of an instruction that goes on
    parts: list[str] = []
    directives = True
    documents: deque[str] = deque()  # ends of the here-documents that are open
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if documents:
            if line.lstrip("\t") == documents[0]:
                documents.popleft()
            continue
        if stripped.startswith("#"):
            if directives and (directive := _DIRECTIVE.match(stripped)) and directive[1] != "\\":
                raise ValueError(
                    f"environment/Dockerfile line {number}: the escape character must be \\, got {directive[1]}"
                )
            continue
        directives = False
        if not stripped:
            continue
        start = start if parts else number
        if stripped.endswith("\\"):
            parts.append(line.rstrip()[:-1])
            continue
        found.append((start, "".join([*parts, line]).strip()))
        parts = []
        if len(found) > MOST_INSTRUCTIONS:
            raise TooLarge(
                f"{_AT}has more than {MOST_INSTRUCTIONS:,} instructions: write several variables into one ENV, or use fewer of them"
            )
        if _TAKES_DOCUMENTS.match(found[-1][1]):
            documents.extend(end for _, end in _DOCUMENT.findall(found[-1][1]))
    if rest := "".join(parts).strip():
        found.append((start, rest))
    return found


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
    words, word, quote, i = [], "", "", 0
    while i < len(text):
        char = text[i]
        if char == "\\" and quote != "'" and i + 1 < len(text):
            word += text[i : i + 2]
            i += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char.isspace():
            words += [word] if word else []
            word, i = "", i + 1
            continue
        word += char
        i += 1
    if quote:
        instruction.refuse(f"has a quote {quote} without its end")
    return tuple([*words, word] if word else words)


def expand(instruction: Instruction, word: str, variables: Mapping[str, str], *, what: str = "a word") -> str:
    """A word without its quotes, with `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+other}` expanded; an unknown variable is empty.

    Nothing is expanded within single quotes. ValueError for other forms of `${…}`; TooLarge for a longer text than a variable may have;
    `what` it is.
    """
    text, quote, i = "", "", 0
    while i < len(word):
        char = word[i]
        if quote == "'":
            quote, text = ("", text) if char == "'" else (quote, text + char)
            i += 1
        elif char == quote:
            quote, i = "", i + 1
        elif not quote and char in "'\"":
            quote, i = char, i + 1
        elif char == "\\" or char == "$":
            found = _REFERENCE.match(word, i)
            if found is None:
                if word.startswith("${", i):
                    instruction.refuse(
                        f"has {quoted(word[i:])}, which is none of ${{NAME}}, ${{NAME:-default}} and ${{NAME:+other}}"
                    )
                text, i = text + char, i + 1
                continue
            text += _referred(found, quote, variables)
            i = found.end()
            if len(text) > VARIABLE_BYTES:
                raise TooLarge(f"{instruction.at} gives {what} {_TOO_LONG}")
        else:
            text, i = text + char, i + 1
    return text


def _referred(found: re.Match[str], quote: str, variables: Mapping[str, str]) -> str:
    escaped, bare, braced, operator, other = found.groups()
    if escaped is not None:
        keeps = quote == '"' and escaped not in '"$\\'
        return f"\\{escaped}" if keeps else str(escaped)
    value = variables.get(bare or braced, "")
    if operator == "-":
        return value or str(other)
    if operator == "+":
        return str(other) if value else ""
    return value


_VALUE_OF = re.compile(r"\$\{?([A-Za-z_]\w*)")


def variables_in(instruction: Instruction) -> list[tuple[str, str | None]]:
    """The names and values, as written, of an ENV or ARG; None: an ARG without a value. ValueError for a quote without its end."""
    words = split(instruction, instruction.rest)
    if instruction.name == "ENV" and words and "=" not in words[0]:
        return [(words[0], instruction.rest[len(words[0]) :].strip())]
    pairs = [word.partition("=") for word in words]
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


def stage_of(line: str) -> tuple[str, str]:
    """(the image, the name of the stage) of a FROM, in lower case; both empty for one that cannot be read."""
    found = _STAGE.match(line)
    return (found[1].lower(), (found[2] or "").lower()) if found is not None else ("", "")


def entry_point(instruction: Instruction) -> str:
    """The program that an ENTRYPOINT starts, for people; empty for one that only waits."""
    try:
        words = json.loads(instruction.rest)
    except (ValueError, RecursionError):
        words = instruction.rest.split()
    command = " ".join(map(str, words)) if isinstance(words, list) else str(words)
    return "" if _IDLE.fullmatch(command.strip()) else command


def refuse_entry_point(
    instruction: Instruction, command: str, instead: str = "[environment].healthcheck"
) -> NoReturn:
    """ValueError, one sentence: no sandbox runs it. `instead`: where the task starts what it needs."""
    instruction.refuse(
        f"starts {quoted(command)}, and no program of an image is started: remove it, and start what the task needs in {instead}"
    )
