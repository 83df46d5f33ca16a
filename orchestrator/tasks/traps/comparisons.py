"""The rules for `[`, `[[` and `case`."""

import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.tree import every, quoted, source_of

_CALCULATES: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_TIMES: Final = re.compile(r" -(nt|ot) ")
_QUOTED: Final = re.compile(r'"[^"]*"|\'[^\']*\'')


def in_test(node: Node, text: AgentText) -> Iterator[Rule]:
    """`[ … ]` and `[[ … ]]`."""
    if not source_of(node).startswith("[["):
        yield from in_old_test(node, node.named_children, text)
        return
    if _TIMES.search(source_of(node)):
        yield Rule.TIMES
    for expression in every(node):
        if expression.type != "binary_expression" or len(expression.children) < 3:
            continue
        left, operator, *rest = expression.children
        if not rest or operator.type in ("&&", "||"):
            continue
        sign = source_of(operator)
        if sign in _CALCULATES and (text.carries(left) or text.carries(rest[-1])):
            yield Rule.ARITHMETIC
        elif sign in ("==", "=", "!=", "=~"):
            yield from _matched(left, sign, rest, text)


def in_old_test(node: Node, arguments: list[Node], text: AgentText) -> Iterator[Rule]:
    """`[ … ]` and `test …`, which parse their arguments again."""
    if _TIMES.search(source_of(node)):
        yield Rule.TIMES
    if any(_unquoted_agent_text(child, text) for child in arguments):
        yield Rule.OPERATORS


def in_case(node: Node, text: AgentText) -> Iterator[Rule]:
    """One pattern of a `case`."""
    if not node.named_children or node.parent is None:
        return
    pattern = node.named_children[0]
    if _unquoted_agent_text(pattern, text):
        yield Rule.PATTERN
    bare = _QUOTED.sub("", source_of(pattern))
    if text.carries(node.parent.named_children[0]) and "*" in bare and source_of(pattern) != "*":
        yield Rule.SOMEWHERE


def _matched(left: Node, sign: str, right: list[Node], text: AgentText) -> Iterator[Rule]:
    if any(_unquoted_agent_text(node, text) for node in right):
        yield Rule.PATTERN
    source = "".join(map(source_of, right))
    whole = source.lstrip().startswith("^") and source.rstrip().endswith("$")
    loose = not whole if sign == "=~" else "*" in _QUOTED.sub("", source)
    if text.carries(left) and sign != "!=" and loose:
        yield Rule.SOMEWHERE


def _unquoted_agent_text(node: Node, text: AgentText) -> bool:
    if quoted(node):
        return False
    if node.type in ("simple_expansion", "expansion", "command_substitution"):
        return text.carries(node)
    return any(_unquoted_agent_text(child, text) for child in node.named_children)
