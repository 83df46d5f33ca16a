"""Programs of sed, awk and jq."""

import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.commands import PROGRAM_FIRST
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.somewhere import by_awk
from orchestrator.tasks.traps.tree import operands, options, plain

_KINDS: Final = {"sed": "sed", "jq": "jq", **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), "awk")}
_VALUES: Final = {"sed": "efl", "awk": "fvFe", "jq": "fL"}
"""Letters of options with a value."""
_AWK_COMMANDS: Final = re.compile(
    r"""\bsystem\s*\((?!\s*"[^"]*"\s*\))|(?<!["\s|])\s*\|&?\s*getline|\bprintf?\b[^|;}\n/"]*\|&?\s*(?![|"&\s])|@(?:include|load)\b|@\w+\("""
)
"""Commands that an awk program makes of what it reads, not of a fixed text."""
_SED_COMMANDS: Final = re.compile(
    r"(?:^|[;{}\n/$\d!])\s*e\s*(?:$|[;}\n])|(?:^|[;{}\n/$\d!])\s*s([/|,#:])(?:(?!\1).)*\1(?:(?!\1).)*\1[gpimIM\d]*e"
)
_ONE_LINE: Final = re.compile(r"/\^[\w =:@,-]+\$/ *p?")
_JQ_ANY: Final = re.compile(r"\b(?:any|index|indices|contains|inside|test|IN)\b")


def transforms(name: str, arguments: list[Node], text: AgentText, *, fed: bool) -> Iterator[Rule]:
    """sed, awk and jq: programs made of agent text, and programs that run the lines that they read."""
    kind = _KINDS.get(name)
    if kind is None:
        return
    programs, files, data = program_texts(arguments, _VALUES[kind])
    if any(text.unsafe(file) for file in files) or any(
        a.type != "raw_string" and text.carries(a) for a in programs
    ):
        yield Rule.PROGRAM_TEXT
    if not (fed or any(text.unsafe(file) for file in data)):
        return
    commands = {"sed": _SED_COMMANDS, "awk": _AWK_COMMANDS}.get(kind)
    if commands is not None and any(commands.search(plain(program)) for program in programs):
        yield Rule.PROGRAM_TEXT
    if kind == "awk" and any(map(by_awk, programs)):
        yield Rule.SOMEWHERE
    if kind in ("sed", "awk") and any(_ONE_LINE.fullmatch(plain(program).strip()) for program in programs):
        yield Rule.SOMEWHERE
    if (
        kind == "jq"
        and "e" in options(arguments)
        and any(_JQ_ANY.search(plain(program)) for program in programs)
    ):
        yield Rule.SOMEWHERE


def data_files(name: str, arguments: list[Node]) -> list[Node]:
    """The files that a command reads as data: its operands, without the program of sed, awk and jq, or the pattern of grep."""
    if (kind := _KINDS.get(name)) is not None:
        return program_texts(arguments, _VALUES[kind])[2]
    return operands(arguments)[1 if name in PROGRAM_FIRST else 0 :]


def programs_of(name: str, arguments: list[Node]) -> list[Node]:
    """The program texts of a command of sed, awk or jq."""
    return program_texts(arguments, _VALUES[_KINDS[name]])[0]


def program_texts(arguments: list[Node], valued: str) -> tuple[list[Node], list[Node], list[Node]]:
    """The program texts of sed, awk or jq, the files of programs, and the files of data."""
    texts: list[Node] = []
    files: list[Node] = []
    rest: list[Node] = []
    before = ""
    for argument in arguments:
        word = plain(argument)
        if before:
            option, before = before, "-" if before == "--" else ""
            {"e": texts, "f": files}.get(option, []).append(argument)
        elif word in ("--arg", "--argjson", "--slurpfile", "--rawfile"):
            before = "--"
        elif word in ("--expression", "--file", "--from-file", "--source"):
            before = "e" if word in ("--expression", "--source") else "f"
        elif word.startswith("--expression="):
            texts.append(argument)
        elif word.startswith("-") and len(word) > 1 and not word.startswith("--"):
            if word[-1] in valued and (word[-1] in "fe" or len(word) == 2):
                before = word[-1]
        elif not word.startswith("--"):
            rest.append(argument)
    if not texts and not files:
        texts, rest = rest[:1], rest[1:]
    return texts, files, rest
