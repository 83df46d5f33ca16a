"""The parts of its source that a compiled Python module keeps: the names that it defines and its texts. Its lines are gone."""

import ast
from collections.abc import Iterator
from typing import Final

MIN_TEXT: Final = 4
MAX_TEXT: Final = 255
"""Bytes of a name or text that the format keeps behind one byte for its length."""
SHARE: Final = 0.8
"""Of the bytes of a source's names and texts: a text may be folded into another, an annotation left out."""


def own_names(source: bytes) -> frozenset[bytes]:
    """The names that a Python source defines, and its texts; empty for what is not Python.

    >>> sorted(own_names(b"def median(rows):\\n    half = len(rows) // 2\\n    return rows[half]"))
    [b'half', b'median', b'rows']
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    found = (name for node in ast.walk(tree) for name in _defined(node))
    return frozenset(name.encode() for name in found if name.isascii() and MIN_TEXT <= len(name) <= MAX_TEXT)


def kept(names: frozenset[bytes], module: bytes) -> frozenset[bytes]:
    """Those of `names` that a compiled module keeps, if they are at least `SHARE` of their bytes; else none."""
    left = (1 - SHARE) * sum(map(len, names))
    found = set()
    for name in sorted(names, key=len, reverse=True):
        if bytes([len(name)]) + name in module:
            found.add(name)
        elif (left := left - len(name)) < 0:
            return frozenset()
    return frozenset(found)


def _defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.arg():
            yield node.arg
        case ast.Name(ctx=ast.Store()):
            yield node.id
        case ast.Constant(value=str()):
            yield str(node.value)
