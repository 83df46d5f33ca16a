"""Python conditions that hold of nothing: no entry is wrong, every entry is among the expected ones."""

import ast
from collections.abc import Iterator
from typing import Final

from orchestrator.tasks.traps.python_lists import Lists
from orchestrator.tasks.traps.python_names import PythonNames
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.python_tree import nodes_of

_WRONG: Final = (ast.NotEq, ast.NotIn, ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_SETS: Final = frozenset({"set", "frozenset", "collections.Counter", "Counter"})
_GROWS: Final = frozenset({"append", "add", "extend"})


class Nothing:
    """The conditions of one source on the agent's entries, each with the value over which it goes."""

    def __init__(self, tree: ast.Module, *, names: PythonNames, texts: Texts, lists: Lists) -> None:
        self._tree, self._names, self._texts, self._lists = tree, names, texts, lists

    def found(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        """The conditions that an empty value of the agent's fulfils."""
        for node in nodes_of(self._tree):
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
