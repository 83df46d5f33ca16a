"""Lists that must have exactly one entry before the tests look for the right one: that entry is then the whole answer."""

import ast
from collections.abc import Iterator
from typing import Final, TypeAlias

from orchestrator.tasks.traps.python_tree import parents_of
from orchestrator.tasks.traps.tree import listed

_ERRORS: Final = listed("AssertionError Exception RuntimeError ValueError")
_EXITS: Final = listed("SystemExit exit sys.exit")

_Scope: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_Place: TypeAlias = tuple[int, int]


class Singles:
    """The lists of one source whose single entry the tests require before they read them. In doubt, a list may have more."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._parents = parents_of(tree)
        self._known: dict[ast.AST, dict[str, _Place]] = {}

    def holds(self, node: ast.expr) -> bool:
        """Whether a list has one entry where an expression reads it: `assert len(lines) == 1` stands before it in the same function."""
        if not isinstance(node, ast.Name):
            return False
        scope = self._scope(node)
        if scope not in self._known:
            self._known[scope] = self._required(scope)
        place = self._known[scope].get(node.id)
        return place is not None and place <= (node.lineno, node.col_offset)

    def _required(self, scope: _Scope) -> dict[str, _Place]:
        found: dict[str, _Place] = {}
        for statement in scope.body:
            for name in _names(statement):
                found.setdefault(name, (statement.lineno, statement.col_offset))
        if not found:
            return found
        bound: list[str] = []
        doubtful: set[str] = set()
        for node in ast.walk(scope):
            if not isinstance(node, ast.Name):
                doubtful.update(_texts(node))
            elif self._is_bound(node, scope):
                bound.append(node.id)
            elif not self._is_read(node):
                doubtful.add(node.id)
        return {n: place for n, place in found.items() if bound.count(n) == 1 and n not in doubtful}

    def _is_bound(self, node: ast.Name, scope: _Scope) -> bool:
        """`lines = …` in the function itself."""
        parent = self._parents[node]
        return isinstance(parent, ast.Assign) and node in parent.targets and self._scope(node) is scope

    def _is_read(self, node: ast.Name) -> bool:
        """Whether nothing can change a list here: its length, a loop over it, a message."""
        match self._parents[node]:
            case ast.Call(ast.Name("len"), [one], []):
                return one is node
            case ast.comprehension(iter=inner) | ast.For(iter=inner) | ast.Assert(msg=inner):
                return inner is node
            case ast.FormattedValue():
                return True
        return False

    def _scope(self, node: ast.AST) -> _Scope:
        """The function around a node, or the whole source."""
        while (parent := self._parents.get(node)) is not None:
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
                return parent
            node = parent
        return self._tree


def _names(statement: ast.stmt) -> Iterator[str]:
    """The lists that must have one entry by a statement, in every case."""
    match statement:
        case ast.Assert(test):
            found = _lengths(test, ast.And, ast.Eq)
        case ast.If(test, [*notes, last]) if all(map(_prints, notes)) and _fails(last):
            found = _lengths(test, ast.Or, ast.NotEq)
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("self"), "assertEqual"), [left, right, *_])):
            found = _lengths(ast.Compare(left, [ast.Eq()], [right]), ast.And, ast.Eq)
        case _:
            return
    yield from found


def _lengths(test: ast.expr, joint: type[ast.boolop], sign: type[ast.cmpop]) -> Iterator[str]:
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, joint) else [test]
    for part in parts:
        match part:
            case ast.Compare(ast.Call(ast.Name("len"), [ast.Name(name)], []), [found], [ast.Constant(1)]):
                if isinstance(found, sign):
                    yield name


def _prints(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("print(")


def _fails(node: ast.stmt) -> bool:
    """Whether a statement ends the tests as failed: `raise ValueError(…)`, `sys.exit(1)`, `raise SystemExit(1)`, `assert False`."""
    match node:
        case ast.Assert(ast.Constant(False)):
            return True
        case ast.Raise(ast.Call(func)) if ast.unparse(func) in _ERRORS:
            return True
        case ast.Raise(ast.Name(name)):
            return name in _ERRORS
        case ast.Raise(ast.Call(func, [ast.Constant(1)])) | ast.Expr(ast.Call(func, [ast.Constant(1)])):
            return ast.unparse(func) in _EXITS
    return False


def _texts(node: ast.AST) -> Iterator[str]:
    """The names that a node has in itself: parameters, imports, functions, `global`, patterns."""
    if isinstance(node, ast.Constant | ast.Attribute | ast.keyword):
        return
    for _, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield each
