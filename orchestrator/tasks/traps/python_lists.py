"""Python that asks only whether nothing is missing, or whether some entry is right: a list of everything passes."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from orchestrator.tasks.traps.python_names import PythonNames, bindings
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.python_tree import nodes_of, parents_of

_EMPTY: Final = frozenset({"[]", "set()", "()", "{}", "0", "list()", "frozenset()"})
_WHOLE: Final = frozenset({"len", "set", "sorted", "list", "frozenset"})
_EXITS: Final = re.compile(r"(?:^|\.)(?:_?exit|SystemExit)$")
_NONE: Final = re.compile(r"assertFalse$|(?:^|\.)(?:_?exit|SystemExit)$")
"""Calls that succeed with an empty value: `self.assertFalse(errors)`, `sys.exit(len(errors))`."""
_FAILURE: Final = (("1", "0"), ("True", "False"))
_SUCCESS: Final = (("0", "1"), ("0.0", "1.0"), ("False", "True"), ("0\n", "1\n"))
_LOADS: Final = re.compile(r"(?:^|[._])(?:parse|load\w*|genfromtxt|fromfile|read_\w+|reader|DictReader)$")


class Lists:
    """The conditions of one source on lists and sets of what the agent wrote."""

    def __init__(self, tree: ast.Module, names: PythonNames, texts: Texts) -> None:
        self._tree, self._names, self._texts = tree, names, texts
        self._parents = parents_of(tree)
        subscripts = (node for node in nodes_of(tree) if isinstance(node, ast.Subscript))
        self._often = Counter(map(ast.unparse, subscripts))
        self._read = Counter(node.id for node in nodes_of(tree) if isinstance(node, ast.Name))
        self._derived: set[str] = set()
        before = -1
        while before != len(self._derived):
            before = len(self._derived)
            self._derived |= {
                target.id
                for node in nodes_of(tree)
                for target, value in bindings(node)
                if isinstance(target, ast.Name) and self._is_derived(value)
            }

    def somewhere(self) -> Iterator[ast.expr]:
        """The conditions that a list of everything fulfils."""
        nodes = [node for node in nodes_of(self._tree) if isinstance(node, ast.expr)]
        if not any(map(self._is_surplus, nodes)):
            bound = {ast.unparse(side) for node in nodes for side in self._bound(node)}
            lacks = ((node, self._lack(node)) for node in nodes)
            yield from (
                n
                for n, own in lacks
                if own is not None and ast.unparse(own) not in bound and self.wants_none(n)
            )
        for node in nodes:
            uses = [*self._uses(node)] if self._is_choice(node) else []
            if uses and all(map(self._wants_some, uses)):
                yield node
            if self._is_entry(node) or self._is_common(node) or self._is_any(node):
                yield node
        for loop in nodes_of(self._tree):
            if isinstance(loop, ast.For) and self._is_derived(loop.iter) and self._succeeds_at_one(loop):
                yield loop.iter

    def is_read(self, node: ast.expr) -> bool:
        """Whether a value is an entry of what the agent wrote, which a library read."""
        return self._is_derived(node)

    def around(self, node: ast.AST) -> ast.AST | None:
        """The node around another."""
        return self._parents.get(node)

    def wants_none(self, node: ast.expr) -> bool:
        """Whether success needs a value to be empty, where it stands or in the variable that holds it."""
        return any(map(self._wants_none, self._uses(node)))

    def _is_derived(self, node: ast.expr) -> bool:
        return any(
            isinstance(inner, ast.expr)
            and (
                self._texts.carries(inner)
                or (isinstance(inner, ast.Name) and inner.id in self._derived)
                or self._loads(inner)
            )
            for inner in ast.walk(node)
        )

    def _loads(self, node: ast.expr) -> bool:
        """`ET.parse("/app/out.xml")`, `pd.read_csv("/app/out.csv")`: what a library reads from a file of the agent's."""
        if not isinstance(node, ast.Call) or not node.args:
            return False
        named = _LOADS.search(self._names.called(node.func)) is not None
        return named and self._names.in_work_directory(node.args[0])

    def _is_common(self, node: ast.expr) -> bool:
        """`len(got & WANT)`, where nothing else looks at what was found."""
        match node:
            case ast.BinOp(left, ast.BitAnd(), right):
                own = [side for side in (left, right) if self._texts.carries(side)]
                if len(own) != 1 or not isinstance(own[0], ast.Name):
                    return False
                return self._read[own[0].id] == 2
        return False

    def _is_any(self, node: ast.expr) -> bool:
        """`any(u["name"] == "alice" for u in users)`"""
        match node:
            case ast.Call(ast.Name("any"), [ast.GeneratorExp(elt, [part]) | ast.ListComp(elt, [part])]):
                equal = any(map(_equals_constant, ast.walk(elt)))
                derived = self._is_derived(part.iter) and not self._texts.carries(part.iter)
                return equal and derived and not self._is_one(part.iter) and self._texts.is_wanted(node)
        return False

    def _is_one(self, node: ast.expr) -> bool:
        """Whether a list of JSON has one entry. Of what other libraries read, the length and a loop may count different things: rows, columns."""
        value = self._names.value(node)
        read = isinstance(value, ast.Call) and self._names.called(value.func) in ("json.load", "json.loads")
        return read and self._texts.has_one(node)

    def _succeeds_at_one(self, loop: ast.For) -> bool:
        """`for row in rows: if row[0] == "x" and row[1] == "3": found = True`"""
        return any(
            isinstance(inner, ast.If)
            and any(map(_equals_constant, _parts(inner.test)))
            and any(map(_sets_success, inner.body))
            for inner in loop.body
        )

    def _lack(self, node: ast.expr) -> ast.expr | None:
        """The agent's side of what is expected and not found: `got` of `WANT - got`, `text` of `[w for w in WANT if w not in text]`."""
        match node:
            case ast.BinOp(left, ast.Sub(), right) | ast.Call(ast.Attribute(left, "difference"), [right]):
                return right if self._texts.carries(right) and not self._is_derived(left) else None
            case ast.ListComp(generators=[part]) | ast.SetComp(generators=[part]):
                if self._is_derived(part.iter):
                    return None
                for found in part.ifs:
                    match found:
                        case ast.Compare(ops=[ast.NotIn(), *_], comparators=[right, *_]):
                            if self._texts.carries(right):
                                return right
        return None

    def _bound(self, node: ast.expr) -> Iterator[ast.expr]:
        """Values of the agent that have, by this condition, no more than the expected entries: `len(got) == 2`, `got <= WANT`."""
        match node:
            case ast.Compare(left, [ast.Eq()], [right]):
                pairs = [(left, right), (right, left)]
            case ast.Compare(left, [ast.LtE() | ast.Lt()], [right]):
                pairs = [(left, right)]
            case ast.Compare(left, [ast.GtE() | ast.Gt()], [right]):
                pairs = [(right, left)]
            case ast.Call(ast.Attribute(left, "issubset"), [right]):
                pairs = [(left, right)]
            case ast.Call(func, [left, right, *_]) if ast.unparse(func).endswith(
                ("assertEqual", "assertCountEqual")
            ):
                pairs = [(left, right), (right, left)]
            case _:
                return
        for own, fixed in pairs:
            while isinstance(own, ast.Call) and ast.unparse(own.func) in _WHOLE and own.args:
                own = own.args[0]
            called = isinstance(node, ast.Call)
            if (
                self._texts.carries(own)
                and not self._is_derived(fixed)
                and (called or self._texts.is_wanted(node))
            ):
                yield own

    def _is_surplus(self, node: ast.expr) -> bool:
        """Entries that are found and not expected."""
        match node:
            case ast.BinOp(left, ast.Sub(), right) | ast.Call(ast.Attribute(left, "difference"), [right]):
                return self._texts.carries(left) and not self._is_derived(right)
            case ast.ListComp(generators=[part]) | ast.SetComp(generators=[part]):
                return self._texts.carries(part.iter) and any(
                    isinstance(c, ast.Compare) and isinstance(c.ops[0], ast.NotIn) for c in part.ifs
                )
        return False

    def _is_choice(self, node: ast.expr) -> bool:
        """Entries of the agent's that equal something: `[r for r in rows if r["id"] == 7]`, `next(r for …, None)`."""
        match node:
            case ast.Call(ast.Name("next"), [ast.GeneratorExp(generators=[part]), *_]):
                pass
            case ast.ListComp(generators=[part]):
                pass
            case _:
                return False
        equal = any(
            isinstance(c, ast.Compare) and isinstance(c.ops[0], ast.Eq) for i in part.ifs for c in ast.walk(i)
        )
        return equal and self._is_derived(part.iter)

    def _is_entry(self, node: ast.expr) -> bool:
        """`"alice" in data["winners"]`, where nothing else looks at the list."""
        match node:
            case ast.Compare(ast.Constant(), [ast.In() as sign], [ast.Subscript() as right]):
                return (
                    self._often[ast.unparse(right)] == 1
                    and self._is_derived(right)
                    and not self._texts.carries(right)
                    and self._texts.is_wanted(node, holds=isinstance(sign, ast.In))
                )
        return False

    def _uses(self, node: ast.expr) -> Iterator[ast.expr]:
        """The places where a value is used: its own, or those of the variable that holds it. Messages do not count."""
        match self._parents.get(node):
            case ast.Assign([ast.Name(name)]):
                function = next((a for a in self._above(node) if isinstance(a, ast.FunctionDef)), self._tree)
                reads = (
                    n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
                )
                yield from (
                    read
                    for read in reads
                    if read.id == name
                    and not any(isinstance(a, ast.FormattedValue) for a in self._above(read))
                )
            case _:
                yield node

    def _above(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def _wants_none(self, use: ast.expr) -> bool:
        """Whether success needs an empty value here."""
        node, parent = self._counted(use)
        match parent:
            case ast.Compare(ops=[ast.Eq()], comparators=[right]):
                return ast.unparse(right) in _EMPTY and self._texts.is_wanted(parent)
            case ast.Compare(ops=[ast.NotEq() | ast.Gt()], comparators=[right]):
                return ast.unparse(right) in _EMPTY and self._texts.is_wanted(parent, holds=False)
            case ast.Call(func) if ast.unparse(func).endswith("assertEqual"):
                return any(ast.unparse(a) in _EMPTY for a in parent.args)
            case ast.UnaryOp(op=ast.Not()) | ast.If() | ast.BoolOp() | ast.Assert():
                return self._texts.is_wanted(node, holds=False)
            case ast.IfExp(test, ast.Constant(yes), ast.Constant(no)) if test is node:
                around = self._parents.get(parent)
                ends = isinstance(around, ast.Call) and _EXITS.search(ast.unparse(around.func)) is not None
                return (str(yes), str(no)) in (_FAILURE if ends else _SUCCESS)
            case ast.Call(func):
                return _NONE.search(ast.unparse(func)) is not None
        return False

    def _wants_some(self, use: ast.expr) -> bool:
        """Whether success needs a value that is not empty here, and nothing more."""
        node, parent = self._counted(use)
        match parent:
            case ast.Compare(left=left, ops=[sign], comparators=[right]) if left is node:
                some = {"0": ast.Gt | ast.NotEq, "1": ast.GtE, "None": ast.IsNot | ast.NotEq, "[]": ast.NotEq}
                kinds = some.get(ast.unparse(right))
                return kinds is not None and isinstance(sign, kinds) and self._texts.is_wanted(parent)
            case ast.Assert(test) | ast.If(test) if test is node:
                return self._texts.is_wanted(node)
            case ast.UnaryOp(op=ast.Not()) | ast.BoolOp():
                return self._texts.is_wanted(node)
        return False

    def _counted(self, use: ast.expr) -> tuple[ast.expr, ast.AST | None]:
        """A use, or its length, and what stands around it."""
        parent = self._parents.get(use)
        match parent:
            case ast.Call(ast.Name("len")):
                return parent, self._parents.get(parent)
        return use, parent


def _parts(test: ast.expr) -> list[ast.expr]:
    """The conditions that must hold together."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _equals_constant(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant()]) | ast.Compare(
            ast.Constant(), [ast.Eq()]
        ):
            return True
    return False


def _sets_success(node: ast.stmt) -> bool:
    """`found = True`, `return True`"""
    match node:
        case ast.Assign(value=ast.Constant(True)) | ast.Return(ast.Constant(True)):
            return True
    return False
