"""Python conditions that hold of nothing: no entry is wrong, every entry is among the expected ones."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from orchestrator.tasks.traps.python_lists import Lists
from orchestrator.tasks.traps.python_names import PythonNames
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.python_tree import nodes_of
from orchestrator.tasks.traps.tree import listed

_WRONG: Final = (ast.NotEq, ast.NotIn, ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_ORDERS: Final = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_CLOSE: Final = listed(
    "numpy.allclose torch.allclose numpy.array_equal torch.equal numpy.testing.assert_allclose numpy.testing.assert_array_equal"
)
_SETS: Final = frozenset({"set", "frozenset", "collections.Counter", "Counter"})
_GROWS: Final = frozenset({"append", "add", "extend"})


class Nothing:
    """The conditions of one source on the agent's entries, each with the value over which it goes."""

    def __init__(self, tree: ast.Module, *, names: PythonNames, texts: Texts, lists: Lists) -> None:
        self._tree, self._names, self._texts, self._lists = tree, names, texts, lists

    def found(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        """The conditions that an empty value of the agent's fulfils."""
        for node in nodes_of(self._tree):
            yield from self._as_far(node)
            match node:
                case ast.ListComp(generators=[part]) | ast.SetComp(generators=[part]):
                    if any(map(is_wrong, part.ifs)) and self._lists.wants_none(node):
                        yield node, part.iter
                case ast.Call(
                    ast.Name("any" | "sum"), [ast.GeneratorExp(elt, [part]) | ast.ListComp(elt, [part])]
                ):
                    if any(map(is_wrong, (elt, *part.ifs))) and self._lists.wants_none(node):
                        yield node, part.iter
                case ast.Compare(left, [ast.LtE() | ast.Lt()], [right]) | ast.Call(
                    ast.Attribute(left, "issubset"), [right]
                ):
                    if self._is_surplus(left, right) and self._texts.is_wanted(node):
                        yield node, left
                case ast.Compare(left, [ast.GtE() | ast.Gt()], [right]) | ast.Call(
                    ast.Attribute(left, "issuperset"), [right]
                ):
                    if self._is_surplus(right, left) and self._texts.is_wanted(node):
                        yield node, right
                case ast.BinOp(left, ast.Sub(), right) | ast.Call(ast.Attribute(left, "difference"), [right]):
                    if self._is_surplus(left, right) and self._lists.wants_none(node):
                        yield node, left
                case ast.Compare(left, [ast.Eq()], [right]):
                    for one, other in ((left, right), (right, left)):
                        if _is_beginning(one, other) and self._texts.is_wanted(node):
                            yield node, other
                case ast.BinOp(left, ast.Div(), ast.Call(ast.Name("len"), [own])):
                    if self._counts(left):
                        yield node, own

    def _as_far(self, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
        """`np.allclose(got[:n], want[:n])` with the shorter length, and `sum(abs(r["x"] - r["y"]) for r in rows) < 0.1`."""
        match node:
            case ast.Call(func, [one, other, *_]) if self._names.called(func) in _CLOSE:
                sides, holds = (one, other), True
            case ast.Compare(one, [ast.Eq()], [other]):
                sides, holds = (one, other), True
            case ast.Compare(one, [sign], [ast.Constant()]) if isinstance(sign, _ORDERS):
                holds = isinstance(sign, ast.Lt | ast.LtE)
                own = self._added(one)
                if own is not None and self._texts.is_wanted(node, holds=holds):
                    yield node, own
                return
            case _:
                return
        cut = [
            side.value for side in sides if isinstance(side, ast.Subscript) and self._is_shorter(side.slice)
        ]
        read = [one for one in cut if self._lists.is_read(one)]
        if len(cut) == 2 and len(read) == 1 and self._texts.is_wanted(node, holds=holds):
            yield node, read[0]

    def _is_shorter(self, index: ast.expr) -> bool:
        """`[:min(len(got), len(want))]`"""
        match index:
            case ast.Slice(None, ast.expr() as end, None):
                return (
                    re.fullmatch(r"min\(len\(.*\), len\(.*\)\)", ast.unparse(self._names.value(end)))
                    is not None
                )
        return False

    def _added(self, node: ast.expr) -> ast.expr | None:
        """The agent's entries whose errors are added: `sum(abs(a - b) for a, b in rows)`, or in a loop `error += abs(a - b)`."""
        match self._names.value(node):
            case ast.Call(ast.Name("sum"), [ast.GeneratorExp(elt, [part]) | ast.ListComp(elt, [part])]):
                return part.iter if _is_error(elt) and self._lists.is_read(part.iter) else None
        loops = self.counting(node.id) if isinstance(node, ast.Name) else []
        grown = [n for loop in loops for n in ast.walk(loop) if isinstance(n, ast.AugAssign)]
        return loops[0].iter if len(loops) == 1 and len(grown) == 1 and _is_error(grown[0].value) else None

    def _is_read_once(self, name: str) -> bool:
        """Whether nothing else uses a number: the share of what is expected is `hits / len(WANT)`."""
        return self._reads[name] == 1

    @cached_property
    def _reads(self) -> Counter[str]:
        """How often the source reads each name."""
        names = (n for n in nodes_of(self._tree) if isinstance(n, ast.Name))
        return Counter(n.id for n in names if isinstance(n.ctx, ast.Load))

    def counting(self, name: str) -> list[ast.For]:
        """The loops over the agent's entries in which a number grows: `if got[k] == WANT[k]: hits += 1`."""
        return [loop for loop in self._growing.get(name, ()) if self._lists.is_read(loop.iter)]

    @cached_property
    def _growing(self) -> dict[str, list[ast.For]]:
        found: dict[str, list[ast.For]] = {}
        for loop in nodes_of(self._tree):
            grown = ast.walk(loop) if isinstance(loop, ast.For) and not loop.orelse else ()
            for inner in grown:
                if (
                    isinstance(loop, ast.For)
                    and isinstance(inner, ast.AugAssign)
                    and isinstance(inner.target, ast.Name)
                ):
                    found.setdefault(inner.target.id, []).append(loop)
        return found

    def errors(self, loop: ast.For) -> Iterator[tuple[str, ast.stmt]]:
        """The lists and counters that keep what is wrong in a loop, and that must be empty: each name with the statement that makes it grow."""
        for inner in ast.walk(loop):
            if isinstance(inner, ast.If) and is_wrong(inner.test) and not inner.orelse:
                for statement in inner.body:
                    name = _grown(statement)
                    if name is not None and self._must_be_empty(name):
                        yield name, statement

    def _must_be_empty(self, name: str) -> bool:
        reads = (
            n
            for n in nodes_of(self._tree)
            if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        )
        return any(map(self._lists.wants_none, reads))

    def _is_surplus(self, own: ast.expr, fixed: ast.expr) -> bool:
        """Whether a set of the agent's stands on one side only."""
        value = self._names.value(own)
        match value:
            case ast.SetComp() | ast.Call(ast.Attribute(attr="keys")):
                is_set = True
            case ast.Call(func):
                is_set = self._names.called(func) in _SETS
            case _:
                is_set = False
        return is_set and self._lists.is_read(own) and not self._lists.is_read(fixed)

    def _counts(self, node: ast.expr) -> bool:
        """`sum(r == WANT[i] for …)`: how many entries of the agent's are right."""
        match self._names.value(node):
            case ast.Call(ast.Name("sum"), [ast.GeneratorExp(elt, [part]) | ast.ListComp(elt, [part])]):
                conditions = (elt, *part.ifs)
                equal = any(isinstance(c, ast.Compare) and isinstance(c.ops[0], ast.Eq) for c in conditions)
                return equal and self._lists.is_read(part.iter)
        loops = self.counting(node.id) if isinstance(node, ast.Name) and self._is_read_once(node.id) else []
        tests = [n.test for loop in loops for n in loop.body if isinstance(n, ast.If)]
        return len(tests) == 1 and isinstance(tests[0], ast.Compare) and isinstance(tests[0].ops[0], ast.Eq)


def _is_error(node: ast.expr) -> bool:
    """`abs(a - b)`, `(a - b) ** 2`: never below 0."""
    match node:
        case ast.BinOp(ast.BinOp(op=ast.Sub()), ast.Pow(), _):
            return True
        case ast.Call(func, [ast.BinOp(op=ast.Sub())]):
            return ast.unparse(func) in ("abs", "math.fabs")
    return False


def is_wrong(test: ast.expr) -> bool:
    """Whether a condition on an entry finds that it is wrong: `x != 3`, `not valid(x)`. That a forbidden entry is there is another question."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            return not isinstance(inner, ast.Name)
        case ast.BoolOp(ast.Or(), parts):
            return any(map(is_wrong, parts))
        case ast.Compare(left, [sign], [_]):
            return isinstance(sign, _WRONG) and not (
                isinstance(left, ast.Call) and ast.unparse(left.func) == "len"
            )
    return False


def _grown(statement: ast.stmt) -> str | None:
    match statement:
        case ast.AugAssign(ast.Name(name), ast.Add()):
            return name
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), method))) if method in _GROWS:
            return name
    return None


def _is_beginning(part: ast.expr, own: ast.expr) -> bool:
    """`want[:len(got)]`, next to `got`."""
    match part:
        case ast.Subscript(slice=ast.Slice(None, ast.Call(ast.Name("len"), [inner]), None)):
            return ast.unparse(inner) == ast.unparse(own)
    return False
