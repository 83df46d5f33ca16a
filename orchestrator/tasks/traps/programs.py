"""Commands that run the agent's files or read them as a program: calculators and databases, compilers, loaders, archives, search paths."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.commands import CALCULATORS, CONSOLES
from orchestrator.tasks.traps.fixed_text import WRAPPER
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.tree import above, is_safe, listed, operands, options, plain, quoted, source_of

_PROGRAM_FILES: Final = frozenset({"-f", "--file", "-x", "--command", "-S", "-init", "--init"})
_PROGRAM_TEXT: Final = frozenset({"-e", "--expression"})
_LOADERS: Final = frozenset({"ldd", "gdb"})
_SCRIPT: Final = {"kotlinc": "-script"}
"""Options of compilers that run the source."""
_COMPILERS: Final = re.compile(
    r"(?:[\w-]+-)?(?:gcc|g\+\+|clang|clang\+\+)(?:-\d+)?|cc|c\+\+|as|nasm|rustc|javac|scalac|ghc|tsc|gfortran|fpc|gnat|(?:pdf|xe|lua)?(?:la)?tex|pandoc|typst"
)
_NO_SOURCES: Final = frozenset(
    {"-o", "-d", "-x", "-l", "-t", "-f", "--to", "--from", "--output", "--out-dir", "--outDir", "-output-directory", "--output-directory"}
)  # fmt: skip
_UNPACKS: Final[dict[str, re.Pattern[str]]] = {
    "tar": re.compile(r"-?[a-zA-Z]*x[a-zA-Z]*|--extract|--get"),
    "bsdtar": re.compile(r"-?[a-zA-Z]*x[a-zA-Z]*|--extract"),
    "cpio": re.compile(r"-[a-zA-Z]*i[a-zA-Z]*|--extract"),
    "7z": re.compile(r"[xe]"),
    "7za": re.compile(r"[xe]"),
    "unar": re.compile(r"."),
    "unzip": re.compile(r"."),
}
"""The sign that a command unpacks: for tar its first word or any option, for 7z its first word."""
_READS: Final = re.compile(r"""(?:\.read|\.load|\\i|\\ir|\bsource|\bload_extension\()\s*['"]?([^\s'";)]+)""")
"""Files that commands of a console read as programs."""
_CONFIGURED: Final = {
    "curl": ("K", "--config"),
    "wget": ("", "--config"),
    "make": ("f", "--file"),
    "ssh": ("F", ""),
    "gdb": ("x", "--command"),
}
_EXECUTES: Final = frozenset(
    {"tar", "zip", "rsync", "sort", "sed", "7z", "cp", "mv", "find", "xargs", "uniq", "split"}
)
"""Options of these commands run commands or write files. A file may have the name of an option."""
_LISTS: Final = re.compile(r"-[a-zA-Z]*[lptvzZ][a-zA-Z]*")  # unzip only lists, tests or prints
_ARCHIVE: Final = re.compile(r"-?[a-zA-Z]*f|--file")
_FETCHES: Final = re.compile(r"^\s*(?:curl|wget)\b[^|]*\bhttps?://(?!localhost\b|127\.|0\.0\.0\.0|\[|\$)")
"""Data that another host sends is not the agent's. A port of this one may be."""
_PACKS: Final = re.compile(r"\btar\b[^|]* -?\w*c\w* ")
PROGRAM_PATHS: Final = listed(
    "PATH LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT CLASSPATH BASH_ENV GCONV_PATH OPENSSL_CONF OPENSSL_MODULES PYTHONSTARTUP PYTHONHOME "
    "PYTHONUSERBASE GIT_CONFIG_GLOBAL GIT_EXEC_PATH GIT_SSH_COMMAND XDG_CONFIG_HOME HOME ZDOTDIR INPUTRC NPM_CONFIG_USERCONFIG"
)
"""Variables whose value leads programs to code."""
_MODULE_PATHS: Final = frozenset({"PYTHONPATH", "NODE_PATH", "PERL5LIB", "RUBYLIB", "LUA_PATH", "GOPATH"})
_ASSIGNED: Final = re.compile(r"([A-Z0-9_]+)(\+?)=(.*)", re.DOTALL)
_BRACES: Final = re.compile(r"\$\{[^{}]*\}")


def reads_program(name: str, arguments: list[Node], text: AgentText, *, fed: bool) -> bool:
    """Whether a calculator or console takes its program from the agent. `fed`: its standard input is the agent's."""
    if name not in CALCULATORS | CONSOLES:
        return False
    files = _values(arguments, _PROGRAM_FILES)
    if name in CALCULATORS:
        given = {id(value) for value in _values(arguments, _PROGRAM_TEXT)}
        files += [one for one in operands(arguments) if id(one) not in given]
    return (
        fed
        or any(text.unsafe(file) for file in files)
        or any(argument.type != "raw_string" and text.carries(argument) for argument in arguments)
        or any(not is_safe(path) for argument in arguments for path in _READS.findall(plain(argument)))
    )


def is_configured(name: str, arguments: list[Node], text: AgentText) -> bool:
    """Whether an option names a configuration of the agent's: `curl -K curlrc` writes wherever it says."""
    if name not in _CONFIGURED:
        return False
    letters, long = _CONFIGURED[name]
    return any(
        plain(before) in {long, *(f"-{letter}" for letter in letters)} and text.unsafe(value)
        for before, value in pairwise(arguments)
    )


def takes_names_as_options(name: str, arguments: list[Node], text: AgentText) -> bool:
    """`tar -cf /tmp/x.tar *`: a file may be called `--checkpoint-action=exec=sh x`."""
    found = [plain(argument) for argument in arguments]
    return name in _EXECUTES and any(
        not quoted(argument)
        and plain(argument).startswith("*")
        and "--" not in found[:at]
        and text.unsafe(argument)
        for at, argument in enumerate(arguments)
    )


def loads_program(name: str, arguments: list[Node], text: AgentText) -> bool:
    """`ldd ./prog` runs the loader that the program names, `gdb ./prog` loads files next to it, `kotlinc -script` runs the source."""
    runs = name in _LOADERS or (name in _SCRIPT and _SCRIPT[name] in map(plain, arguments))
    return runs and any(text.unsafe(a) for a in operands(arguments))


def is_compiler(name: str) -> bool:
    return _COMPILERS.fullmatch(name) is not None


def compiles(name: str, arguments: list[Node], text: AgentText, *, fed: bool) -> bool:
    """Whether a compiler reads source code of the agent's."""
    if not is_compiler(name):
        return False
    given = {id(value) for value in _values(arguments, _NO_SOURCES)}
    sources = [source for source in operands(arguments) if id(source) not in given]
    return any(fed if plain(source) == "-" else text.unsafe(source) for source in sources)


def unpacks(node: Node, name: str, arguments: list[Node], text: AgentText, *, fed: bool) -> bool:
    """Whether an archive of the agent's is unpacked."""
    verb = _UNPACKS.get(name)
    texts = [plain(argument) for argument in arguments]
    if verb is None or not texts:
        return False
    if name in ("tar", "bsdtar", "cpio"):
        first = [] if texts[0].startswith("-") else texts[:1]
        found = any(verb.fullmatch(word) for word in [*first, *(w for w in texts if w.startswith("-"))])
    else:
        found = verb.match(texts[0]) is not None and not (
            name == "unzip" and any(map(_LISTS.fullmatch, texts))
        )
    if not found:
        return False
    if any(text.unsafe(archive) for archive in _archives(name, arguments)):
        return True
    if any(word.startswith("--file=") and not is_safe(word.partition("=")[2]) for word in texts):
        return True
    if not fed:
        return False
    # Archives of `tar -c` are checked where they are packed.
    return _PACKS.search(_pipeline(node)) is None and not is_fetched(node)


def is_fetched(node: Node) -> bool:
    """Whether the standard input of a command is what another host sends."""
    return _FETCHES.search(_pipeline(node)) is not None


def _pipeline(node: Node) -> str:
    return next((source_of(ancestor) for ancestor in above(node) if ancestor.type == "pipeline"), "")


def _archives(name: str, arguments: list[Node]) -> list[Node]:
    if name in ("tar", "bsdtar"):
        given = [value for before, value in pairwise(arguments) if _ARCHIVE.fullmatch(plain(before))]
        return [value for value in given if plain(value) != "-"]
    positional = operands(arguments)
    return positional[1:2] if name in ("7z", "7za") else positional[:1] if name != "cpio" else []


def _values(arguments: list[Node], names: frozenset[str]) -> list[Node]:
    """The words that follow one of these options."""
    return [value for before, value in pairwise(arguments) if plain(before) in names]


def search_path(node: Node, text: AgentText) -> Iterator[Rule]:
    """`PATH=.:$PATH`, `export LD_LIBRARY_PATH=$PWD/lib`, `env CLASSPATH=. java Main`."""
    if node.type == "declaration_command" and source_of(node).startswith("export"):
        if any(text.carries(word) for word in node.named_children if word.type != "variable_assignment"):
            yield Rule.AGENT_PROGRAM  # export "$name=$value": the agent chooses PATH
        return
    if node.type != "variable_assignment" and not (node.type in ("word", "concatenation") and _of_env(node)):
        return
    found = _ASSIGNED.fullmatch(source_of(node))
    if found is None or found[1] not in PROGRAM_PATHS | _MODULE_PATHS:
        return
    value = _BRACES.sub(lambda match: "$PWD" if match[0] == "${PWD}" else "$x", found[3].strip("\"'"))
    parts = value.split(":")
    if found[2] and not parts[0]:  # PATH+=:/opt/bin
        parts = parts[1:]
    if not value or not (text.carries(node) or any(map(_in_the_work_directory, parts))):
        return
    command = next((ancestor for ancestor in (node, *above(node)) if ancestor.type == "command"), None)
    if found[1] in PROGRAM_PATHS:
        yield Rule.AGENT_PROGRAM
    elif command is None or not (WRAPPER in source_of(command) or "I" in options(words(command)[1:2])):
        yield Rule.NOT_ISOLATED


def _of_env(node: Node) -> bool:
    """Whether a word is an assignment before the command that `env` starts."""
    command = node.parent
    if command is None or command.type != "command" or plain(command.named_children[0]) != "env":
        return False
    before = [source_of(word) for word in command.named_children[1:] if word.start_byte < node.start_byte]
    return all(word.startswith("-") or "=" in word for word in before)


def _in_the_work_directory(part: str) -> bool:
    if part.startswith(("$PWD", "$(pwd)", "`pwd`", "/app")):
        return True
    return not part.startswith(("$", "/", "~")) and not is_safe(part)
