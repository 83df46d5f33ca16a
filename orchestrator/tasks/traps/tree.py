"""A bash script as a tree: tree-sitter's parser, which continues after parts that it cannot read, and small queries on its nodes."""

from collections.abc import Iterator
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_BASH: Final = Language(tree_sitter_bash.language())
SAFE: Final = (
    "/tests", "/usr", "/opt", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/var", "/proc", "/sys", "/logs/verifier",
    "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty",
)  # fmt: skip
"""Places whose content the agent cannot choose."""


def listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


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


def variables_in(node: Node) -> set[str]:
    """The names of the variables in a node."""
    return {source_of(n) for n in every(node) if n.type == "variable_name"}


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


def is_safe(path: str) -> bool:
    """Whether the agent cannot choose the content of a path."""
    return any(path == place or path.startswith(f"{place}/") for place in SAFE) and ".." not in path


def quoted(node: Node) -> bool:
    return node.type in ("string", "raw_string", "ansi_c_string")
