"""Python that fails only if a number of the agent's is too small or too large: NaN is neither. And `min(1.0, nan)`, which is 1.0."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from orchestrator.tasks.traps.python_lists import Lists
from orchestrator.tasks.traps.python_names import PythonNames, bindings
from orchestrator.tasks.traps.python_text import Texts, fails
from orchestrator.tasks.traps.python_tree import nodes_of, parents_of
from orchestrator.tasks.traps.tree import listed

_FLOATS: Final = listed("float numpy.float64 numpy.float32 numpy.fromstring")
_FILES: Final = frozenset({"numpy.loadtxt", "numpy.genfromtxt"})
_KEEPS: Final = re.compile(
    r"(?:^|\.)(?:abs|fabs|max|min|sum|mean|median|std|norm|round|sqrt|pow|log|exp|subtract|square|sorted|list|tuple|array|asarray)$"
)
"""Functions and methods whose result is NaN if a number is."""
_KNOWS: Final = re.compile(
    r"isnan|isfinite|isinf|isclose|allclose|parse_constant|\bnan\b|fullmatch|isdigit|isdecimal|isnumeric",
    re.IGNORECASE,
)
"""Words of tests that look at the form of a number, or compare in the positive way."""
_ORDERS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_EXITS: Final = frozenset({"sys.exit", "exit", "SystemExit", "os._exit"})
_SEVERAL: Final = frozenset({"any", "all", "bool", "int", "numpy.any", "numpy.all"})


class Numbers:
    """The comparisons of one source with numbers of the agent's."""

    def __init__(self, tree: ast.Module, *, names: PythonNames, texts: Texts, lists: Lists) -> None:
        self._tree, self._names, self._texts, self._lists = tree, names, texts, lists
        self._parents = parents_of(tree)
        self._numbers: set[str] = set()
        bound = [pair for node in nodes_of(tree) for pair in _pairs(node)]
        before = -1
        while before != len(self._numbers):
            before = len(self._numbers)
            self._numbers |= {name for name, value in bound if self._is_number(value)}

    def not_a_number(self) -> Iterator[ast.expr]:
        """The conditions that NaN passes, and the scores that it turns into 1. None if the tests look at the form of numbers themselves."""
        nodes = [node for node in nodes_of(self._tree) if isinstance(node, ast.Compare | ast.Call)]
        if not any(map(self._has_number, nodes)) or _KNOWS.search(ast.unparse(self._tree)):
            return
        compared = [node for node in nodes if isinstance(node, ast.Compare) and self._has_number(node)]
        bounded = {
            name
            for node in compared
            if isinstance(node.ops[0], (*_ORDERS, ast.Eq))
            and self._texts.is_wanted(node)
            and not self._passes(node)
            for name in self._names_in(node)
        }
        for node in compared:
            orders = all(isinstance(sign, _ORDERS) for sign in node.ops)
            if orders and not bounded & self._names_in(node) and self._passes(node):
                yield node
        yield from (node for node in nodes if isinstance(node, ast.Call) and self._clamps(node))

    def _clamps(self, node: ast.Call) -> bool:
        """`min(1.0, 1 - err)`"""
        match node:
            case ast.Call(ast.Name("min"), [ast.Constant(float() | int() as most), *rest]) if most > 0:
                return any(map(self._is_number, rest))
        return False

    def _has_number(self, node: ast.expr) -> bool:
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else getattr(node, "args", [])
        return any(map(self._is_number, sides))

    def _names_in(self, node: ast.expr) -> set[str]:
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & self._numbers

    def _is_number(self, node: ast.expr) -> bool:
        """Whether an expression is a number with a fraction, or several, that the agent wrote or printed."""
        match node:
            case ast.Name(name):
                return name in self._numbers
            case ast.BinOp(left, _, right):
                return self._is_number(left) or self._is_number(right)
            case ast.UnaryOp(ast.USub() | ast.UAdd(), inner) | ast.Subscript(inner) | ast.Starred(inner):
                return self._is_number(inner)
            case ast.ListComp(elt) | ast.GeneratorExp(elt) | ast.SetComp(elt):
                return self._is_number(elt)
            case ast.List(elts) | ast.Tuple(elts):
                return any(map(self._is_number, elts))
            case ast.Call(ast.Name("map"), [ast.Name("float"), given]):
                return self._is_given(given)
            case ast.Call(ast.Name("abs"), [ast.BinOp(left, ast.Sub(), right)]) if any(
                map(self._lists.is_read, (left, right))
            ):
                return True
            case ast.Call(func, given):
                name = self._names.called(func)
                if name in _FILES:
                    return any(map(self._names.in_work_directory, given[:1]))
                if name in _FLOATS:
                    return any(self._is_given(one) or self._is_number(one) for one in given)
                owner = [func.value] if isinstance(func, ast.Attribute) else []
                return _KEEPS.search(name) is not None and any(map(self._is_number, [*given, *owner]))
        return False

    def _is_given(self, node: ast.expr) -> bool:
        """Whether a text is the agent's, or an argument of the program, which may be."""
        return self._texts.carries(node) or "sys.argv" in ast.unparse(node) or self._lists.is_read(node)

    def _passes(self, node: ast.expr) -> bool:
        """Whether the tests pass where a comparison does not hold."""
        child: ast.AST = node
        value = False
        while (parent := self._parents.get(child)) is not None:
            match parent:
                case ast.UnaryOp(op=ast.Not()):
                    value = not value
                case ast.Call(func) if self._names.called(func) in _EXITS:
                    return not value
                case ast.Call(func) if ast.unparse(func).endswith("assertFalse"):
                    return not value
                case ast.IfExp(test, body, other) if test is child:
                    taken = body if value else other
                    if not isinstance(taken, ast.Constant):
                        return False
                    value = taken.value not in (0, False, "0", "0.0", None, "")
                case ast.If(test, body) if test is child:
                    # NaN takes the other branch: `continue` passes over what fails below.
                    return not value and any(
                        fails(each) for each in body if not isinstance(each, ast.Continue)
                    )
                case ast.Call(func) if self._names.called(func) not in _SEVERAL:
                    return value and ast.unparse(func).endswith(("assertTrue", "write", "write_text"))
                case ast.BoolOp(ast.And()) if value:
                    return False
                case ast.Assert(test):
                    return test is child and value
                case ast.Compare() | ast.While() | ast.comprehension():
                    return False
                case ast.stmt():
                    return value
            child = parent
        return False


def _pairs(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement binds, and to what; of `for a, b in zip(x, y)` each to its own."""
    for target, value in bindings(node):
        match target, value:
            case ast.Name(name), _:
                yield name, value
            case ast.Tuple(targets), ast.Call(ast.Name("zip"), given):
                yield from (
                    (t.id, v) for t, v in zip(targets, given, strict=False) if isinstance(t, ast.Name)
                )
            case ast.Tuple(targets), _:
                yield from ((t.id, value) for t in targets if isinstance(t, ast.Name))
