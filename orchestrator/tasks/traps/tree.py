"""A bash script as a tree: tree-sitter's parser, which continues after parts that it cannot read, and small queries on its nodes."""

import re
from collections.abc import Iterator
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_BASH: Final = Language(tree_sitter_bash.language())
SAFE: Final = ("/tests", "/usr", "/bin", "/etc", "/dev/null", "/proc", "/sbin", "/lib")
"""Places whose content the agent cannot choose."""
PREFIXES: Final = frozenset(
    {"timeout", "env", "nice", "ionice", "chrt", "nohup", "time", "stdbuf", "unbuffer", "exec", "command", "builtin", "setsid", "sudo", "strace",
     "ltrace", "valgrind", "xvfb-run", "unshare", "setpriv", "prlimit", "taskset", "coproc"}
)  # fmt: skip
_TIMES: Final = re.compile(r"[\d.]+[smhd]?")


def parse(text: str) -> Node:
    return Parser(_BASH).parse(text.encode(errors="replace")).root_node


def source_of(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def every(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from every(child)


def above(node: Node) -> Iterator[Node]:
    while (up := node.parent) is not None:
        yield up
        node = up


def words(command: Node) -> list[Node]:
    """Name and arguments of a command, without words that only start it (timeout 3, env A=b, nice)."""
    found = [
        c
        for c in command.named_children
        if c.type not in ("variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect")
    ]
    while found and plain(found[0]) in PREFIXES:
        found = found[1:]
        while found and (
            plain(found[0]).startswith("-") or _TIMES.fullmatch(plain(found[0])) or "=" in plain(found[0])
        ):
            found = found[1:]
    return found


def plain(node: Node) -> str:
    """A word without its quotes."""
    text = source_of(node)
    return text[1:-1] if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0] else text


def operands(arguments: list[Node]) -> list[Node]:
    """The arguments that are not options."""
    found, rest = [], False
    for node in arguments:
        if plain(node) == "--" and not rest:
            rest = True
        elif rest or not plain(node).startswith("-") or plain(node) == "-":
            found.append(node)
    return found


def options(arguments: list[Node]) -> str:
    """The letters of the short options, and the long options, each surrounded by spaces."""
    return "".join(
        f" {p} " if p.startswith("--") else p[1:] for p in map(plain, arguments) if p.startswith("-")
    )


def leading(arguments: list[Node]) -> list[Node]:
    """The arguments before the first one that is not an option."""
    found: list[Node] = []
    for node in arguments:
        if not plain(node).startswith("-") or plain(node) == "-":
            break
        found.append(node)
    return found


def is_safe(path: str) -> bool:
    """Whether the agent cannot choose the content of a path."""
    return path.startswith(SAFE) and ".." not in path


def quoted(node: Node) -> bool:
    return node.type in ("string", "raw_string", "ansi_c_string")
