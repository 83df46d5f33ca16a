"""A Python source as a tree, read once for all rules."""

import ast
from collections.abc import Callable
from functools import lru_cache


@lru_cache(maxsize=1)
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes in the order of `ast.walk`, without the marks of names that are read or set."""
    found: list[ast.AST] = [tree]
    for node in found:  # which grows by each turn
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    return tuple(found)


@lru_cache(maxsize=1)
def parents_of(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """The node around each."""
    return {child: node for node in nodes_of(tree) for child in ast.iter_child_nodes(node)}


def names_where(tree: ast.AST, holds: Callable[[ast.Name], bool]) -> dict[str, list[ast.Name]]:
    """The places of each name at which `holds` is true."""
    found: dict[str, list[ast.Name]] = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.Name) and holds(node):
            found.setdefault(node.id, []).append(node)
    return found
