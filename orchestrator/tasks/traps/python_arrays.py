"""Python conditions on whole arrays and tables: all, any and sums over no entries, and an array of shape (0, 3) that fits any three numbers."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from orchestrator.tasks.traps.python_lists import Lists
from orchestrator.tasks.traps.python_names import PythonNames, bindings
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.python_tree import nodes_of
from orchestrator.tasks.traps.tree import listed

_READS: Final = re.compile(r"(?:numpy|torch)\.load|numpy\.(?:loadtxt|genfromtxt|fromfile)|pandas\.read_\w+")
_ANY_SHAPE: Final = re.compile(r"(?:numpy|torch)\.load")
"""The file gives the shape; text files, and columns of tables, have one dimension and fit only as many numbers."""
_REDUCES: Final = listed(
    "float int len sum mean max min std var median norm item all any nunique count prod nanmax nanmin"
)
_PARTS: Final = frozenset({"shape", "size", "ndim", "dtype", "dtypes", "columns", "empty", "keys"})
_FINDS: Final = frozenset({"isnull", "isna", "duplicated"})
_CLOSE: Final = frozenset({"numpy.allclose", "torch.allclose"})
_HOLDS: Final = frozenset(
    {"assert_array_less", "assert_allclose", "assert_array_almost_equal", "assert_almost_equal"}
)


class Arrays:
    """The arrays and tables of one source that a library read from what the agent wrote."""

    def __init__(self, tree: ast.Module, *, names: PythonNames, texts: Texts, lists: Lists) -> None:
        self._tree, self._names, self._texts, self._lists = tree, names, texts, lists
        self._arrays: set[str] = set()
        self._shaped: set[str] = set()
        bound = [pair for node in nodes_of(tree) for pair in bindings(node)]
        before = -1
        while before != len(self._arrays) + len(self._shaped):
            before = len(self._arrays) + len(self._shaped)
            for target, value in bound:
                if isinstance(target, ast.Name) and self._is_array(value):
                    self._arrays.add(target.id)
                    if self._has_any_shape(value):
                        self._shaped.add(target.id)

    def found(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        """The conditions that an array without entries fulfils, each with the array."""
        for node in nodes_of(self._tree):
            if isinstance(node, ast.expr) and (own := self._whole(node)) is not None:
                yield node, own

    def _whole(self, node: ast.expr) -> ast.expr | None:
        match node:
            case ast.Call(func, [one, other, *_]) if self._names.called(func) in _CLOSE:
                own = one if self._is_array(one) else other
                return own if self._passes(own, one, other) and self._texts.is_wanted(node) else None
            case ast.Call(func, [one, other, *_]) if self._names.called(func).rpartition(".")[2] in _HOLDS:
                scalar = isinstance(other, ast.Constant)
                return one if scalar and self._passes(one, one) else None
            case ast.Call(ast.Attribute(one, "all"), []):
                return one if self._passes(one, one) and self._texts.is_wanted(node) else None
            case ast.Call(ast.Attribute(one, "any"), []):
                return one if self._passes(one, one) and self._lists.wants_none(node) else None
            case ast.Call(func, [one]) if self._names.called(func) in ("numpy.all", "torch.all"):
                return one if self._passes(one, one) and self._texts.is_wanted(node) else None
            case ast.Call(func, [one]) if self._names.called(func) in ("numpy.any", "torch.any"):
                return one if self._passes(one, one) and self._lists.wants_none(node) else None
            case ast.Call(ast.Attribute(ast.Call(ast.Attribute(one, found)), "sum"), []) if found in _FINDS:
                total: ast.expr = node
                around = self._lists.around(node)
                if isinstance(around, ast.Attribute) and around.attr == "sum":
                    outer = self._lists.around(around)
                    total = outer if isinstance(outer, ast.Call) else node
                return one if self._is_array(one) and self._lists.wants_none(total) else None
        return None

    def _passes(self, own: ast.expr, *sides: ast.expr) -> bool:
        """Whether the agent can write an array without entries that fits the others of a condition: one number, or an array that broadcasts."""
        if not self._is_array(own):
            return False
        inner = [n for side in sides for n in self._fitted(side)]
        others = any(
            isinstance(n, ast.List | ast.Tuple)
            or (isinstance(n, ast.Name) and n.id not in self._arrays and not self._names.is_module(n))
            for n in inner
        )
        return not others or any(map(self._has_any_shape, sides))

    def _fitted(self, node: ast.AST) -> Iterator[ast.AST]:
        """The parts of an expression that must have fitting shapes: not what `isin` gets, and no index."""
        yield node
        match node:
            case ast.Call(ast.Attribute(attr="isin") as func):
                parts: Iterator[ast.AST] = iter([func])
            case ast.Subscript(inner):
                parts = iter([inner])
            case _:
                parts = ast.iter_child_nodes(node)
        for part in parts:
            yield from self._fitted(part)

    def _is_array(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(name):
                return name in self._arrays
            case ast.BinOp(left, _, right) | ast.Compare(left, [_], [right]):
                return self._is_array(left) or self._is_array(right)
            case ast.UnaryOp(_, inner):
                return self._is_array(inner)
            case ast.Subscript(inner, index):
                return self._is_array(inner) and not (
                    isinstance(index, ast.Constant) and isinstance(index.value, int)
                )
            case ast.Attribute(inner, attribute):
                return attribute not in _PARTS and self._is_array(inner)
            case ast.Call(func, given):
                if self._reads(node):
                    return True
                name = self._names.called(func).rpartition(".")[2]
                values = [*given, *([func.value] if isinstance(func, ast.Attribute) else [])]
                return name not in _REDUCES | _PARTS and any(map(self._is_array, values))
        return False

    def _reads(self, node: ast.Call) -> bool:
        known = _READS.fullmatch(self._names.called(node.func)) is not None
        return known and bool(node.args) and self._names.in_work_directory(node.args[0])

    def _has_any_shape(self, node: ast.expr) -> bool:
        return any(
            (isinstance(n, ast.Name) and n.id in self._shaped)
            or (
                isinstance(n, ast.Call)
                and self._reads(n)
                and _ANY_SHAPE.fullmatch(self._names.called(n.func)) is not None
            )
            for n in ast.walk(node)
        )
