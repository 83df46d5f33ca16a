"""Python whose comparisons are as many as the agent's entries: an empty answer passes all of them."""

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import Final, TypeAlias

from orchestrator.tasks.traps.python_lists import Lists
from orchestrator.tasks.traps.python_names import bindings
from orchestrator.tasks.traps.python_text import Texts, fails
from orchestrator.tasks.traps.python_tree import names_where, nodes_of, parents_of

_RIGHT: Final = (ast.Eq, ast.In, ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_WRONG: Final = (ast.NotEq, ast.NotIn, ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_GROWS: Final = frozenset({"append", "add", "extend", "update", "insert"})
_Loop: TypeAlias = ast.Call | ast.For


class Lengths:
    """The comparisons of one source that go entry by entry."""

    def __init__(self, tree: ast.Module, *, texts: Texts, lists: Lists) -> None:
        self._tree, self._texts, self._lists = tree, texts, lists
        self._parents = parents_of(tree)

    def empty(self) -> Iterator[ast.expr]:
        """The loops over the agent's entries alone, or as far as the shorter list reaches: `zip(got, want)`."""
        found = [(n, iterated) for n in nodes_of(self._tree) for iterated in self._checked(n)]
        if not found or self._requires_length():
            return
        for node, iterated in found:
            assert isinstance(node, ast.Call | ast.For)
            pairs = self._pairs(iterated)
            own = pairs if pairs is not None else [iterated]
            if not any(map(self._lists.is_read, own)) or self._is_known(node, own):
                continue
            if pairs is not None or (self._is_alone(iterated) and not self._compares_elsewhere(node)):
                yield iterated

    def _checked(self, node: ast.AST) -> Iterator[ast.expr]:
        """The values that a loop goes over if each turn is a check: `all(a == b for …)`, `for … : assert a == b`."""
        match node:
            case ast.Call(ast.Name("all"), [ast.GeneratorExp(elt, [part]) | ast.ListComp(elt, [part])]):
                if not part.ifs and self._is_right(elt) and self._texts.is_wanted(node):
                    yield part.iter
            case ast.For(iter=iterated, body=body, orelse=[]):
                if any(map(self._is_check, body)) and not any(map(self._collects, ast.walk(node))):
                    yield iterated

    def _is_check(self, node: ast.stmt) -> bool:
        match node:
            case ast.Assert(test):
                return self._is_right(test)
            case ast.If(ast.UnaryOp(ast.Not(), test), body):
                return self._is_right(test) and any(map(fails, body))
            case ast.If(ast.Compare(left, [sign], [_]), body):
                return isinstance(sign, _WRONG) and not _is_length(left) and any(map(fails, body))
            case ast.Expr(ast.Call(ast.Attribute(attr="assertEqual"))):
                return True
        return False

    def _is_right(self, test: ast.expr) -> bool:
        match test:
            case ast.BoolOp(ast.And(), parts):
                return any(map(self._is_right, parts))
            case ast.Compare(left, [sign], [_]):
                return isinstance(sign, _RIGHT) and not _is_length(left)
        return False

    def _collects(self, node: ast.AST) -> bool:
        """Whether a loop counts or keeps something that a later condition can look at, or ends early."""
        match node:
            case ast.AugAssign() | ast.Break() | ast.Yield():
                return True
            case ast.Call(ast.Attribute(attr=name)) if name in _GROWS:
                return True
            case ast.Return(ast.Constant(value)) if value:
                return True
            case ast.Assign([ast.Subscript()]):
                return True
            case ast.Assign(value=ast.Constant(True)):
                return True
        return False

    def _pairs(self, node: ast.expr) -> list[ast.expr] | None:
        """The sequences of a `zip` that stops at the shorter one."""
        match node:
            case ast.Call(ast.Name("enumerate"), [inner, *_]):
                return self._pairs(inner)
            case ast.Call(ast.Name("zip"), given, keywords):
                strict = any(
                    k.arg == "strict" and not (isinstance(k.value, ast.Constant) and not k.value.value)
                    for k in keywords
                )
                return [] if strict else given
        return None

    def _is_alone(self, node: ast.expr) -> bool:
        """Whether all that a loop goes over is the agent's: `got.splitlines()`, not `zip_longest(got, want)`."""
        match node:
            case ast.Call(ast.Name(), [_, *_] as given):
                return all(map(self._lists.is_read, given)) or self._texts.carries(node)
        return self._lists.is_read(node)

    def _requires_length(self) -> bool:
        """Whether a condition looks at the length of something of the agent's."""
        return any(
            isinstance(n, ast.Call)
            and ast.unparse(n.func) in ("len", "Counter", "collections.Counter", "any", "sum")
            and any(map(self._lists.is_read, n.args))
            for n in nodes_of(self._tree)
        )

    def _is_known(self, node: _Loop, own: list[ast.expr]) -> bool:
        """Whether another condition looks at the same entries, or at the text from which they come."""
        inside = set(ast.walk(node))
        names: set[str] = set()
        new = {
            n.id for one in own for n in ast.walk(one) if isinstance(n, ast.Name) and self._lists.is_read(n)
        }
        while new:
            names |= new
            new = {other for name in new for other in self._related.get(name, ())} - names
        return any(n not in inside for name in names for n in self._conditions.get(name, ()))

    @cached_property
    def _related(self) -> dict[str, set[str]]:
        """Names of the agent's text, each with those that statements bind together with it: `lines = got.splitlines()`."""
        found: dict[str, set[str]] = {}
        for statement in nodes_of(self._tree):
            if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.With):
                continue
            for pair in bindings(statement):
                inner = (n for part in pair for n in ast.walk(part) if isinstance(n, ast.Name))
                group = {n.id for n in inner if self._lists.is_read(ast.Name(n.id, ast.Load()))}
                for name in group:
                    found.setdefault(name, set()).update(group)
        return found

    @cached_property
    def _conditions(self) -> dict[str, list[ast.Name]]:
        """The places of conditions that read a name."""
        return names_where(self._tree, self._is_condition)

    def _is_condition(self, node: ast.AST) -> bool:
        child = node
        while (parent := self._parents.get(child)) is not None and not isinstance(parent, ast.stmt):
            if isinstance(parent, ast.Compare | ast.BoolOp | ast.UnaryOp):
                return True
            if isinstance(parent, ast.Subscript) and parent.value is child:
                return True
            if isinstance(parent, ast.Call) and "assert" in ast.unparse(parent.func):
                return True
            child = parent
        return isinstance(parent, ast.Assert | ast.If | ast.For) and getattr(parent, "test", None) is child

    def _compares_elsewhere(self, node: _Loop) -> bool:
        """Whether another condition of the source needs something that the agent wrote or printed."""
        inside = set(ast.walk(node))
        return any(n not in inside for n in self._compares)

    @cached_property
    def _compares(self) -> list[ast.Compare]:
        """The comparisons with something that the agent wrote or printed, on which success depends."""
        return [
            n
            for n in nodes_of(self._tree)
            if isinstance(n, ast.Compare)
            and any(map(self._lists.is_read, (n.left, *n.comparators)))
            and (self._texts.is_wanted(n) or self._texts.is_wanted(n, holds=False))
        ]


def _is_length(node: ast.expr) -> bool:
    """`len(line) <= 80` is a rule of style."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "len"
