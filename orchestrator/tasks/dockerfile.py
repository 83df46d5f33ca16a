r"""A Dockerfile as instructions: comments, continuation lines, quotes and the JSON form, and nothing that would need an engine.

What may stand in one is FROM, WORKDIR, COPY and ENV; what they mean is `environment.py`. Errors are ValueError, one sentence each, that
names the line and the instruction:

>>> [instruction.words for instruction in parse('FROM debian:12\nENV A=1 \\\n  B="two words"  # no comment')]
[('debian:12',), ('A=1', 'B="two words"', '#', 'no', 'comment')]
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

KNOWN: Final = ("FROM", "WORKDIR", "COPY", "ENV")
CONTAINERS: Final = "only a sandbox provider with container support (`containers`) can build that, and the run's provider has none"

_DIRECTIVE = re.compile(r"#\s*escape\s*=\s*(\S+)", re.IGNORECASE)
_REFERENCE = re.compile(r"\\(.)|\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::([-+])([^{}]*))?\})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `line` is 1-based; `words` are its arguments as written, quotes and all; `flags` the `--key=value` before them."""

    line: int
    name: str
    rest: str
    words: tuple[str, ...]
    flags: Mapping[str, str]
    is_json: bool

    def refuse(self, why: str) -> NoReturn:
        """Raise the ValueError that names this instruction."""
        raise ValueError(f"environment/Dockerfile line {self.line}: {self.name} {why}")


def parse(text: str) -> list[Instruction]:
    """The instructions in order. ValueError for one that is not known, or cannot be read."""
    return [_instruction(line, logical) for line, logical in _logical_lines(text)]


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(line, text) of each instruction: comments and blank lines gone, continuation lines joined."""
    found: list[tuple[int, str]] = []
    begun: tuple[int, str] | None = None
    directives = True
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#"):
            if directives and (directive := _DIRECTIVE.match(stripped)) and directive[1] != "\\":
                raise ValueError(
                    f"environment/Dockerfile line {number}: the escape character must be \\, got {directive[1]}"
                )
            continue
        directives = False
        if not stripped:
            continue
        start, so_far = begun or (number, "")
        if stripped.endswith("\\"):
            begun = start, so_far + line.rstrip()[:-1]
            continue
        found.append((start, (so_far + line).strip()))
        begun = None
    if begun is not None:
        found.append((begun[0], begun[1].strip()))
    return found


def _instruction(line: int, text: str) -> Instruction:
    name, _, rest = text.partition(" ") if " " in text.replace("\t", " ") else (text, "", "")
    if "\t" in name:
        name, _, rest = text.partition("\t")
    bare = Instruction(line, name.upper(), rest.strip(), (), {}, False)
    if bare.name not in KNOWN:
        known = f"{', '.join(KNOWN[:-1])} and {KNOWN[-1]}"
        bare.refuse(f"is not one of {known}: {CONTAINERS}")
    flags, rest = {}, bare.rest
    while flag := re.match(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)", rest):
        flags[flag[1]] = flag[2] or ""
        rest = rest[flag.end() :]
    if bare.name == "COPY" and re.search(r"(?:^|\s)<<", rest):
        bare.refuse(f"has a here-document: {CONTAINERS}")
    if rest.startswith("["):
        try:
            listed = json.loads(rest)
        except ValueError:
            listed = None
        if isinstance(listed, list) and all(isinstance(word, str) for word in listed):
            return Instruction(line, bare.name, rest, tuple(listed), flags, True)
    return Instruction(line, bare.name, rest, split(bare, rest), flags, False)


def split(instruction: Instruction, text: str) -> tuple[str, ...]:
    """`text` at its white space, but not within quotes or after a backslash; both stay in the words."""
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


def expand(instruction: Instruction, word: str, variables: Mapping[str, str]) -> str:
    """A word without its quotes, `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+other}` filled in; an unknown variable is empty.

    Nothing is filled in within single quotes. ValueError for other forms of `${…}`.
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
                        f"has {word[i:]!r:.60}, which is none of ${{NAME}}, ${{NAME:-default}} and ${{NAME:+other}}"
                    )
                text, i = text + char, i + 1
                continue
            text += _referred(found, quote, variables)
            i = found.end()
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
