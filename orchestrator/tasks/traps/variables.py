"""Places where bash uses text as a variable name, or evaluates it for a numeric variable: `a[$(command)]` runs the command there, too."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.tree import every, operands, options, plain, source_of

_NAMED: Final = frozenset({"read", "mapfile", "readarray", "getopts"})
_DECLARE: Final = frozenset({"declare", "typeset", "local"})
_CALCULATED: Final = frozenset({"RANDOM"})


def integers(root: Node) -> frozenset[str]:
    """The variables of a script that are declared as numbers: bash evaluates every value that they are set to."""
    return _CALCULATED | {
        source_of(name)
        for node in every(root)
        if node.type == "declaration_command" and "i" in options(node.named_children)
        for child in node.named_children
        for name in (child, *child.named_children[:1])
        if name.type == "variable_name"
    }


def names_agent_text(node: Node, text: AgentText, numbers: frozenset[str]) -> bool:
    """Whether agent text is a variable's name at this node, or the value of a number."""
    return (
        any(text.carries(place) for place in _names(node, numbers))
        or _reads_number(node, text, numbers)
        or (
            node.type == "expansion"
            and any(child.type == "!" for child in node.children)
            and any(
                child.type == "variable_name" and source_of(child) in text.names for child in node.children
            )
        )
        or _is_offset(node, text)
    )


def _reads_number(node: Node, text: AgentText, numbers: frozenset[str]) -> bool:
    """`declare -i n; read n < out`: bash calculates with what it reads."""
    found = words(node) if node.type == "command" else []
    if not found or plain(found[0]) not in ("read", "mapfile", "readarray"):
        return False
    return (
        any(plain(word) in numbers for word in operands(found[1:])) and text.read_in(node, found) is not None
    )


def _is_offset(node: Node, text: AgentText) -> bool:
    """`${word:got:1}` calculates with `got`."""
    if node.type != "expansion" or not any(child.type == ":" for child in node.children):
        return False
    return any(text.names_in(child) for child in node.named_children[1:])


def _names(node: Node, numbers: frozenset[str]) -> Iterator[Node]:
    """The nodes in places where a name or a number is expected."""
    if node.type == "unary_expression":
        if source_of(node.children[0]) in ("-v", "-R"):
            yield from node.children[1:]
    elif node.type == "unset_command":
        yield from node.named_children
    elif node.type == "variable_assignment" and len(node.named_children) > 1:
        if source_of(node.named_children[0]).partition("[")[0] in numbers:
            yield node.named_children[1]
    elif node.type == "declaration_command" and source_of(node.children[0]) in _DECLARE:
        calculated = set("in") & set(options(node.named_children))
        for child in node.named_children:
            if child.type != "variable_assignment":
                yield child
            elif calculated and len(child.named_children) > 1:
                yield child.named_children[1]
    elif node.type == "command" and (found := words(node)):
        name, arguments = plain(found[0]), found[1:]
        if name in ("[", "test", "printf"):
            yield from (b for a, b in pairwise(arguments) if plain(a) in ("-v", "-R"))
        elif name in _NAMED:
            yield from operands(arguments)
