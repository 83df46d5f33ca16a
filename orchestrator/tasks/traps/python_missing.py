"""Python that checks what the agent left only if it is there: without it, the checks are skipped."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

from orchestrator.tasks.traps.python_lists import Lists
from orchestrator.tasks.traps.python_names import PythonNames
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.python_tree import nodes_of, parents_of

_EXISTS: Final = frozenset({"os.path.exists", "os.path.isfile", "os.path.isdir", "os.path.lexists"})
_IS_THERE: Final = frozenset({"exists", "is_file", "is_dir"})
_SKIPS: Final = ("skip", "skipTest", "SkipTest")
_LISTINGS: Final = frozenset({"glob", "rglob", "iterdir", "listdir", "scandir", "iglob"})
_ORDERED: Final = frozenset({"sorted", "list", "tuple", "set"})
_NOT_FOUND: Final = frozenset(
    {"FileNotFoundError", "OSError", "IOError", "EnvironmentError", "Exception", "BaseException"}
)
_NO_PATH: Final = re.compile(r"://|\s")  # a URL, a sentence
_NEVER: Final = (ast.NotIn, ast.NotEq, ast.IsNot)


class Missing:
    """The guards of one source. What another part of the source reads or requires without a guard must be there, so its guards are quiet."""

    def __init__(
        self,
        tree: ast.Module,
        *,
        names: PythonNames,
        texts: Texts,
        lists: Lists,
        agent_modules: frozenset[str],
    ) -> None:
        self._tree, self._names, self._texts, self._lists = tree, names, texts, lists
        self._modules = agent_modules
        self._parents = parents_of(tree)

    def found(self) -> Iterator[ast.expr | ast.stmt]:
        """The guards through which a missing file, directory or key passes, and the loops over files that may be none."""
        guards = [guard for node in nodes_of(self._tree) for guard in self._guards(node)]
        for guard, path, region in guards:
            regions = [other for _, same, other in guards if same == path] + [region]
            if not self._is_required(path, regions):
                yield guard
        for node in nodes_of(self._tree):
            if isinstance(node, ast.expr) and self._takes_nothing(node):
                yield node
            if isinstance(node, ast.If) and self._has_key(node) and not self._compares_outside(node):
                yield node.test

    def _guards(self, node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, ast.AST]]:
        """Guards, each with the path that may be missing and the part of the source that it guards."""
        match node:
            case ast.If(test, body, orelse):
                for path, there in self._asks(test):
                    if there and not orelse and _checks(body) and not self._compares_outside(node):
                        yield test, path, node
                    elif not there and (region := self._left_out(node, body)) is not None:
                        yield test, path, region
            case ast.Try(body, handlers, orelse):
                for handler in handlers:
                    if _is_not_found(handler) and len(handler.body) == 1:
                        region = self._left_out(node, handler.body, [*body, *orelse])
                        paths = (
                            {path for n in body for path in self._paths(n)} if region is not None else set()
                        )
                        yield from ((handler.body[0], path, region) for path in paths if region is not None)
            case ast.Call(func, [test, *_]) if self._names.called(func).rpartition(".")[2] in (
                "skipif",
                "skipIf",
            ):
                yield from ((test, path, self._part(node)) for path, there in self._asks(test) if not there)
            case ast.Call(func, [test, *_]) if self._names.called(func).endswith("skipUnless"):
                yield from ((test, path, self._part(node)) for path, there in self._asks(test) if there)
            case ast.Call(ast.Attribute(attr="parametrize"), [_, values, *_]):
                listing = listing_of(values, self._names)
                if listing is not None and not self._is_counted(values):
                    yield values, self._names.path(listing) or "", self._part(node)

    def _asks(self, test: ast.expr) -> Iterator[tuple[str, bool]]:
        """The paths of the agent's whose existence a condition needs, each with whether they must be there."""
        match test:
            case ast.UnaryOp(ast.Not(), inner):
                yield from ((path, not there) for path, there in self._asks(inner))
            case ast.BoolOp(sign, parts):
                each = (one for part in parts for one in self._asks(part))
                yield from (one for one in each if one[1] == isinstance(sign, ast.And))
            case ast.Call(ast.Attribute(place, name), []) if name in _IS_THERE:
                if self._names.in_work_directory(place):
                    yield self._names.path(place) or "", True
            case ast.Call(func, [place]) if self._names.called(func) in _EXISTS:
                if self._names.in_work_directory(place):
                    yield self._names.path(place) or "", True

    def _left_out(
        self, node: ast.If | ast.Try, body: list[ast.stmt], tried: Iterable[ast.stmt] = ()
    ) -> ast.AST | None:
        """The function or loop whose checks a statement leaves out: it skips, returns or goes on to the next turn."""
        function = self._part(node)
        inside = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and n.lineno > node.lineno]
        match body[-1]:
            case ast.Pass():
                return node if _checks(tried) and not self._compares_outside(node) else None
            case ast.Return(None | ast.Constant(None | True)):
                return function if _checks(inside) else None
            case ast.Continue():
                loop: ast.AST = node
                while not isinstance(loop, ast.For | ast.While):
                    if (around := self._parents.get(loop)) is None:
                        return None  # outside a loop: no program
                    loop = around
                turn = [n for n in ast.walk(loop) if isinstance(n, ast.stmt) and n.lineno > node.lineno]
                known = any(isinstance(n, ast.AugAssign) for n in turn) or not _checks(turn)
                return None if known or self._compares_outside(loop) else loop
            case ast.Expr(ast.Call(func)) | ast.Raise(ast.Call(func)):
                return function if self._names.called(func).rpartition(".")[2] in _SKIPS else None
        return None

    def _part(self, node: ast.AST) -> ast.AST:
        """The function or class around a node or under a decorator, or the whole source."""
        while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            node = self._parents[node]
        return node

    def _paths(self, node: ast.AST) -> Iterator[str]:
        """The paths of the agent's that calls get or have: `open(path)`, `path.read_text()`."""
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                yield from (path for _, path in self._used(call))

    def _used(self, call: ast.Call) -> Iterator[tuple[ast.Call, str]]:
        places = [*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
        if self._names.called(call.func).rpartition(".")[2] in ("Path", "join", "str"):
            return
        for place in places:
            path = self._names.path(place) or ""
            if self._names.in_work_directory(place) and not _NO_PATH.search(path):
                yield call, path

    @cached_property
    def _uses(self) -> list[tuple[ast.Call, str]]:
        return [
            use for node in nodes_of(self._tree) if isinstance(node, ast.Call) for use in self._used(node)
        ]

    def _is_required(self, path: str, regions: list[ast.AST]) -> bool:
        """Whether a path is read, or must exist, outside of the guarded parts of the source."""
        known = path.partition("{")[0].partition("*")[0]
        inside = {inner for region in regions for inner in ast.walk(region)}
        return any(
            call not in inside and (used == path or (known != path and used.startswith(known)))
            for call, used in self._uses
        )

    def _is_counted(self, values: ast.expr) -> bool:
        """Whether a condition looks at the files of a listing: `assert FILES`."""
        if not isinstance(values, ast.Name):
            return False
        return any(
            isinstance(n, ast.Assert | ast.If)
            and any(isinstance(i, ast.Name) and i.id == values.id for i in ast.walk(n.test))
            for n in nodes_of(self._tree)
        )

    def _compares_outside(self, region: ast.AST) -> bool:
        """Whether another condition of the source needs something that the agent wrote or printed."""
        inside = set(ast.walk(region))
        return any(n not in inside for n in self._compares)

    @cached_property
    def _compares(self) -> list[ast.Compare]:
        return [
            n
            for n in nodes_of(self._tree)
            if isinstance(n, ast.Compare)
            and not isinstance(n.ops[0], _NEVER)
            and any(map(self._lists.is_read, (n.left, *n.comparators)))
            and self._texts.is_wanted(n)
        ]

    def _takes_nothing(self, node: ast.expr) -> bool:
        """`got.get("x", 42) == 42`, and `pytest.importorskip` of a module of the agent's."""
        match node:
            case ast.Compare(
                ast.Call(ast.Attribute(own, "get"), [_, ast.Constant(default)]),
                [ast.Eq()],
                [ast.Constant(right)],
            ):
                return (
                    bool(default)
                    and default == right
                    and self._lists.is_read(own)
                    and self._texts.is_wanted(node)
                )
            case ast.Call(func, [ast.Constant(str(module)), *_]):
                return (
                    self._names.called(func).endswith("importorskip")
                    and module.partition(".")[0] in self._modules
                )
        return False

    def _has_key(self, node: ast.If) -> bool:
        """`if "x" in got: assert got["x"] == 42`"""
        match node:
            case ast.If(ast.Compare(ast.Constant(key), [ast.In()], [own]), body, []):
                entry = f"{ast.unparse(own)}[{key!r}]"
                used = any(
                    isinstance(n, ast.Subscript) and ast.unparse(n) == entry
                    for one in body
                    for n in ast.walk(one)
                )
                return used and _checks(body) and self._lists.is_read(own)
        return False


def listing_of(node: ast.expr, names: PythonNames) -> ast.Call | None:
    """The call that lists a directory of the agent's, for its entries in any order: `sorted(Path("/app/out").glob("*"))`."""
    match names.value(node):
        case ast.Call(ast.Name(name), [inner, *_]) if name in _ORDERED:
            return listing_of(inner, names)
        case ast.Call(func, given) as call:
            called = names.called(func)
            if called.rpartition(".")[2] not in _LISTINGS:
                return None
            by_module = called.rpartition(".")[0] in ("os", "glob") or "." not in called
            place = (given[0] if given else None) if by_module else getattr(func, "value", None)
            return call if isinstance(place, ast.expr) and names.in_work_directory(place) else None
    return None


def _is_not_found(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or ast.unparse(kind) in _NOT_FOUND for kind in kinds)


def _checks(body: Iterable[ast.stmt]) -> bool:
    """Whether statements fail without something: asserts and exits, but not those of what must not be there."""
    return any(_is_check(n) for statement in body for n in ast.walk(statement))


def _is_check(node: ast.AST) -> bool:
    match node:
        case ast.Assert(test):
            return _needs(test)
        case ast.If(test, body):
            ends = any(
                isinstance(n, ast.Raise) or (isinstance(n, ast.Expr) and "exit(" in ast.unparse(n))
                for n in body
            )
            return ends and not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In))
        case ast.Call(ast.Attribute(attr=name)):
            return name.startswith("assert") and not name.startswith(
                ("assertNot", "assertFalse", "assertRaises")
            )
    return False


def _needs(test: ast.expr) -> bool:
    match test:
        case ast.UnaryOp(ast.Not(), _):
            return False
        case ast.BoolOp(_, parts):
            return any(map(_needs, parts))
        case ast.Compare(_, [sign, *_], _):
            return not isinstance(sign, _NEVER)
    return True
