"""Python whose comparisons are as many as the agent's entries: an empty answer passes all of them."""

import ast
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

from orchestrator.tasks.traps.python_arrays import Arrays
from orchestrator.tasks.traps.python_lists import Lists
from orchestrator.tasks.traps.python_missing import listing_of
from orchestrator.tasks.traps.python_names import PythonNames, bindings
from orchestrator.tasks.traps.python_nothing import Nothing
from orchestrator.tasks.traps.python_text import Texts, fails
from orchestrator.tasks.traps.python_tree import names_where, nodes_of, parents_of

_RIGHT: Final = (ast.Eq, ast.In, ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_WRONG: Final = (ast.NotEq, ast.NotIn, ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_HEADERS: Final = frozenset({"columns", "dtype", "dtypes", "ndim"})
"""A table without rows has these as well."""
_GROWS: Final = frozenset({"append", "add", "extend", "update", "insert"})


class Lengths:
    """The comparisons of one source that go entry by entry."""

    def __init__(self, tree: ast.Module, *, names: PythonNames, texts: Texts, lists: Lists) -> None:
        self._tree, self._names, self._texts, self._lists = tree, names, texts, lists
        self._nothing = Nothing(tree, names=names, texts=texts, lists=lists)
        self._arrays = Arrays(tree, names=names, texts=texts, lists=lists)
        self._parents = parents_of(tree)
        self._errors: set[str] = set()
        self._inside: set[ast.AST] = set()

    def empty(self) -> Iterator[ast.expr]:
        """The loops over the agent's entries alone, or as far as the shorter list reaches: `zip(got, want)`. And conditions that hold of nothing."""
        checked = [(n, iterated) for n in nodes_of(self._tree) for iterated in self._checked(n)]
        loops = [(n, iterated) for n, iterated in checked if self._reads(iterated)]
        whole = [(node, own) for node, own in self._nothing.found() if self._reads(own)]
        whole += self._arrays.found()
        if not loops and not whole:
            return
        inside = [*(n for n, _ in loops), *(self._around(node) for node, _ in whole)]
        inside += [value for node, _ in whole for value in self._values(node)]
        counted = (n.id for node, _ in whole for n in ast.walk(node) if isinstance(n, ast.Name))
        inside += [loop for name in counted for loop in self._nothing.counting(name)]
        self._inside = {inner for node in inside for inner in ast.walk(node)}
        self._errors = {
            name for n, _ in loops if isinstance(n, ast.For) for name, _ in self._nothing.errors(n)
        }
        self._errors |= {
            target.id
            for statement in nodes_of(self._tree)
            for target, value in bindings(statement)
            if isinstance(target, ast.Name) and any(value is node for node, _ in whole)
        }
        if self._requires_length():
            return
        for _, iterated in loops + whole:
            pairs = self._pairs(iterated)
            if self._is_known(self._reads(iterated)):
                continue
            if pairs is not None or (
                self._is_alone(iterated)
                and not self._may_be_expected(iterated)
                and not self._compares_elsewhere()
            ):
                yield iterated

    def _reads(self, iterated: ast.expr) -> list[ast.expr]:
        """The values of the agent's in a loop, with those that it pairs them with."""
        pairs = self._pairs(iterated)
        own = pairs if pairs is not None else [iterated]
        return own if any(map(self._is_entry, own)) else []

    def _is_entry(self, node: ast.expr) -> bool:
        """Whether a value holds entries of what the agent wrote, or files that it left: `Path("/app/out").glob("*")`."""
        return self._lists.is_read(node) or listing_of(node, self._names) is not None

    def _is_own(self, node: ast.expr) -> bool:
        """Whether a value has something of the agent's in it, also what a loop keeps: `got.append(line)`, `got[key] = value`."""
        return self._is_entry(node) or any(
            isinstance(n, ast.Name) and n.id in self._kept for n in ast.walk(node)
        )

    @cached_property
    def _kept(self) -> set[str]:
        return self._growing(self._is_entry)

    def _may_be_expected(self, node: ast.expr) -> bool:
        """Whether a value comes from one of several arguments of the program: one may be the file with what is expected."""
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        direct = any(isinstance(n, ast.expr) and _is_argument(n) for n in ast.walk(node))
        return bool(self._given and (direct or names & self._given))

    @cached_property
    def _given(self) -> set[str]:
        """The names of what comes from arguments of the program; none if there is one argument alone."""
        places = {ast.unparse(n) for n in nodes_of(self._tree) if isinstance(n, ast.expr) and _is_argument(n)}
        return self._growing(_is_argument) if len(places - {"sys.argv", "argv"}) != 1 else set()

    def _growing(self, is_one: Callable[[ast.expr], bool]) -> set[str]:
        """The names of variables that hold such a value, or that were made of one."""
        pairs = [pair for node in nodes_of(self._tree) for pair in _kept_in(node)]
        found: set[str] = set()
        before = -1
        while before != len(found):
            before = len(found)
            found |= {
                name
                for name, value in pairs
                if name not in found
                and any(
                    isinstance(n, ast.expr) and (is_one(n) or (isinstance(n, ast.Name) and n.id in found))
                    for n in ast.walk(value)
                )
            }
        return found

    def _around(self, node: ast.expr) -> ast.expr:
        """The whole condition around a value: `len(got - WANT) == 0`, without others that must hold as well."""
        part_of = (ast.Compare, ast.UnaryOp, ast.Call, ast.IfExp, ast.Attribute)
        while isinstance(parent := self._parents.get(node), part_of):
            node = parent
        return node

    def _values(self, node: ast.expr) -> Iterator[ast.expr]:
        """The values of the variables of a condition: `Counter(lines)`, `sum(r == w for …)`."""
        return (self._names.value(n) for n in ast.walk(node) if isinstance(n, ast.Name))

    def _checked(self, node: ast.AST) -> Iterator[ast.expr]:
        """The values that a loop goes over if each turn is a check: `all(a == b for …)`, `for … : assert a == b`."""
        match node:
            case ast.Call(ast.Name("all"), [ast.GeneratorExp(elt, [part]) | ast.ListComp(elt, [part])]):
                if not part.ifs and self._is_right(elt) and self._texts.is_wanted(node):
                    yield part.iter
            case ast.For(iter=iterated, body=body, orelse=[]):
                errors = {inner for _, one in self._nothing.errors(node) for inner in ast.walk(one)}
                rest = (inner for inner in ast.walk(node) if inner not in errors)
                if (errors or any(map(self._is_check, body))) and not any(map(self._collects, rest)):
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
            case ast.Call(ast.Name("range"), [ast.Call(ast.Name("min"), [_, _, *_] as given)]):
                return given
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
                read = all(map(self._lists.is_read, given)) or self._texts.carries(node)
                return read or listing_of(node, self._names) is not None
        return self._is_entry(node)

    def _requires_length(self) -> bool:
        """Whether a condition looks at the length of something of the agent's."""
        return any(
            isinstance(n, ast.Call)
            and ast.unparse(n.func) in ("len", "Counter", "collections.Counter", "any", "sum")
            and any(self._is_own(one) and not self._is_of_errors(one) for one in n.args)
            for n in nodes_of(self._tree)
            if n not in self._inside
        )

    def _is_of_errors(self, node: ast.expr) -> bool:
        """`errors`, `len(errors)`"""
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and node.args:
            node = node.args[0]
        return isinstance(node, ast.Name) and node.id in self._errors

    def _is_known(self, own: list[ast.expr]) -> bool:
        """Whether another condition looks at the same entries, or at the text from which they come."""
        names: set[str] = set()
        new = {
            n.id for one in own for n in ast.walk(one) if isinstance(n, ast.Name) and self._lists.is_read(n)
        }
        while new:
            names |= new
            new = {other for name in new for other in self._related.get(name, ())} - names - self._errors
        return any(n not in self._inside for name in names for n in self._conditions.get(name, ()))

    @cached_property
    def _related(self) -> dict[str, set[str]]:
        """Names of the agent's text, each with those that statements bind together with it: `lines = got.splitlines()`."""
        found: dict[str, set[str]] = {}
        for statement in nodes_of(self._tree):
            if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.With):
                continue
            for pair in bindings(statement):
                inner = (n for part in pair for n in ast.walk(part) if isinstance(n, ast.Name))
                group = {n.id for n in inner if self._is_own(n)}
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
            if isinstance(parent, ast.Attribute) and parent.attr in _HEADERS:
                return False
            if isinstance(parent, ast.Compare | ast.BoolOp | ast.UnaryOp):
                return True
            if isinstance(parent, ast.Subscript) and parent.value is child:
                return True
            if isinstance(parent, ast.Call) and "assert" in ast.unparse(parent.func):
                return True
            child = parent
        return isinstance(parent, ast.Assert | ast.If | ast.For) and getattr(parent, "test", None) is child

    def _compares_elsewhere(self) -> bool:
        """Whether another condition of the source needs something that the agent wrote or printed."""
        return any(n not in self._inside and not self._is_of_errors(n.left) for n in self._compares)

    @cached_property
    def _compares(self) -> list[ast.Compare]:
        """The comparisons with something that the agent wrote or printed, on which success depends."""
        return [
            n
            for n in nodes_of(self._tree)
            if isinstance(n, ast.Compare)
            and not any(isinstance(i, ast.Attribute) and i.attr in _HEADERS for i in ast.walk(n))
            and any(map(self._is_own, (n.left, *n.comparators)))
            and (self._texts.is_wanted(n) or self._texts.is_wanted(n, holds=False))
        ]


def _kept_in(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The variables to which a statement gives a value, or into which it puts one."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), method), given)) if method in _GROWS:
            yield from ((name, value) for value in given)
        case ast.Assign([ast.Subscript(ast.Name(name), key)], value):
            yield from ((name, part) for part in (key, value))
        case ast.AugAssign(ast.Name(name), _, value):
            yield name, value
        case _:
            for target, value in bindings(node):
                yield from ((n.id, value) for n in ast.walk(target) if isinstance(n, ast.Name))


def _is_argument(node: ast.expr) -> bool:
    """`sys.argv[1]`"""
    match node:
        case ast.Subscript(inner) | inner:
            return ast.unparse(inner) in ("sys.argv", "argv")


def _is_length(node: ast.expr) -> bool:
    """`len(line) <= 80` is a rule of style."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "len"
