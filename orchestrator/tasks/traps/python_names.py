"""The meaning of names in a Python source: imported modules, values that are set once, paths."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from orchestrator.tasks.traps.python_tree import nodes_of
from orchestrator.tasks.traps.tree import is_safe, listed

WRAPPER: Final = "PENSTOCK_UNTRUSTED"
_USUAL: Final = {"np": "numpy", "pd": "pandas"}
_OWN: Final = ("/tmp", "/root", "/home", "~")
"""Places in which the tests keep what they make themselves."""
_PATHS: Final = listed(
    "Path PurePath PosixPath str fspath abspath realpath join joinpath expanduser resolve absolute"
)
_NO_PATH: Final = re.compile(
    r"[rwxabt+]{0,3}|utf-?8.*|ascii|latin-?1|ignore|replace|[\s,;|:]*", re.IGNORECASE
)
_MAX_DEPTH: Final = 6
_MAX_VALUES: Final = 20
_MAX_NODES: Final = 500
_ALL_OF: Final = frozenset({"sorted", "list", "set", "tuple", "reversed", "next", "iter", "which"})
_LISTINGS: Final = frozenset({"iterdir", "listdir", "scandir", "walk", "rglob", "glob", "iglob"})
_HOLES: Final = {"format": re.compile(r"\{[^{}]*\}"), "%": re.compile(r"%[sdr]")}


class PythonNames:
    """The names of one source. Names that are set twice stand for nothing."""

    def __init__(self, tree: ast.Module) -> None:
        self._modules = dict(_USUAL)
        bound: list[tuple[str, ast.expr]] = []
        imported: set[str] = set()
        for node in nodes_of(tree):
            if isinstance(node, ast.Import):
                self._modules |= {
                    a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                    for a in node.names
                }
            elif isinstance(node, ast.ImportFrom):
                self._modules |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported |= {a.asname or a.name.partition(".")[0] for a in node.names}
            bound += [(name, value) for target, value in bindings(node) if (name := known_as(target))]
            bound += given_by_definition(node)
        self._imported = {name for alias, name in self._modules.items() if alias in imported}
        often = Counter(name for name, _ in bound)
        self._values = {name: value for name, value in bound if often[name] == 1}
        self._several = _several(tree)

    def each(self, node: ast.expr) -> Iterator[None]:
        """Once for every value of the first name in an expression that stands for several, while it stands for that one; once without such a name."""
        for inner in islice(self._open(node), _MAX_NODES):
            name = inner.id if isinstance(inner, ast.Name) else ""
            values = [value for one in self._several.get(name, ()) for value in self._elements(one)]
            if not values:
                continue
            kept = dict(self._values)
            for value in values[:_MAX_VALUES]:
                self._values[name] = value
                yield
            self._values = kept
            return
        yield

    def _elements(self, one: ast.expr | ast.Starred) -> Sequence[ast.expr]:
        """One value, or with a star each element of a literal list."""
        if not isinstance(one, ast.Starred):
            return [one]
        found = self.value(one.value)
        return found.elts if isinstance(found, ast.List | ast.Tuple | ast.Set) else []

    def imports(self, name: str) -> bool:
        """Whether a full name is that of an imported module, or begins with it."""
        return any(f"{name}.".startswith(f"{module}.") for module in self._imported)

    def is_module(self, node: ast.Name) -> bool:
        """Whether a name is that of a module, or of something that is imported."""
        return node.id in self._modules

    def value(self, node: ast.expr, deep: int = 0) -> ast.expr:
        """The expression that a name stands for, or the expression itself."""
        name = known_as(node)
        if name in self._values and deep < _MAX_DEPTH:
            return self.value(self._values[name], deep + 1)
        match node:
            case ast.Call(func, [_, default]) if self.called(func) in ("os.environ.get", "os.getenv"):
                return self.value(default, deep + 1)
        return node

    def called(self, node: ast.expr, deep: int = 0) -> str:
        """The full name of a function or module: `subprocess.run` for `sp.run` after `import subprocess as sp`."""
        if isinstance(node, ast.Name):
            if node.id in self._modules:
                return self._modules[node.id]
            value = self._values.get(node.id)
            if deep < _MAX_DEPTH and isinstance(value, ast.Name | ast.Attribute | ast.Call):
                found = self.called(value, deep + 1)
                return found if not isinstance(value, ast.Call) or "(" not in found else node.id
            return node.id
        if isinstance(node, ast.Attribute):
            return f"{self.called(node.value, deep)}.{node.attr}"
        match node:
            case ast.Call(ast.Name("getattr"), [owner, ast.Constant(str(attribute)), *_]):
                return f"{self.called(owner, deep)}.{attribute}"
            case ast.Call(func, [ast.Constant(str(module)), *_]):
                if self.called(func, deep + 1) in ("__import__", "importlib.import_module"):
                    return module
        return ast.unparse(node)

    def path(self, node: ast.expr, deep: int = 0) -> str | None:
        """The text or path of an expression, `{}` for parts that are not known; None if its beginning is not known."""
        node = self.value(node)
        if deep > _MAX_DEPTH:
            return None
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.JoinedStr):
            parts = [
                self.path(v.value if isinstance(v, ast.FormattedValue) else v, deep + 1) for v in node.values
            ]
            return None if not parts or parts[0] is None else "".join(part or "{}" for part in parts)
        source = ast.unparse(node)
        if "__file__" in source:
            return "/tests/{}"
        if source.endswith(("cwd()", "getcwd()", "curdir")):
            return "."
        if "PENSTOCK_ANSWER" in source:
            return "./answer"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Add):
            left, right = self.path(node.left, deep + 1), self.path(node.right, deep + 1)
            joint = "/" if isinstance(node.op, ast.Div) else ""
            return None if left is None else f"{left}{joint}{right or '{}'}"
        match node:
            case ast.BinOp(ast.Constant(str(text)), ast.Mod(), values):
                return self._filled(
                    text, "%", values.elts if isinstance(values, ast.Tuple) else [values], deep
                )
            case ast.Call(ast.Attribute(ast.Constant(str(text)), "format"), given):
                return self._filled(text, "format", given, deep)
            case ast.Call(
                ast.Attribute(ast.Constant(str(text)), "join"), [ast.List() | ast.Tuple() as found]
            ):
                parts = [self.path(part, deep + 1) for part in found.elts]
                return None if not parts or parts[0] is None else text.join(part or "{}" for part in parts)
            case ast.ListComp(elt) | ast.GeneratorExp(elt) | ast.SetComp(elt):
                return self.path(elt, deep + 1)
            case ast.Attribute(inner, "path"):  # of an entry of os.scandir
                return self.path(inner, deep + 1)
        if isinstance(node, ast.Call):
            short = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            if short in _ALL_OF and len(node.args) == 1:
                return self.path(node.args[0], deep + 1)
            if short in _LISTINGS:
                return self._listing(node, short, deep)
            if short not in _PATHS:
                return None
            parts = [self.path(a, deep + 1) for a in node.args]
            if short in ("joinpath", "resolve", "absolute", "expanduser") and isinstance(
                node.func, ast.Attribute
            ):
                parts = [self.path(node.func.value, deep + 1), *parts]
            return None if not parts or parts[0] is None else "/".join(part or "{}" for part in parts)
        return None

    def _filled(self, text: str, holes: str, values: list[ast.expr], deep: int) -> str | None:
        """`"%s/prog" % place`: a text with values in its places."""
        parts = iter([self.path(value, deep + 1) for value in values])
        filled = _HOLES[holes].sub(lambda _: next(parts, None) or "{}", text)
        return None if filled.startswith("{}") else filled

    def _listing(self, node: ast.Call, short: str, deep: int) -> str | None:
        """The entries that a loop over a directory finds there."""
        if self.called(node.func) in ("glob.glob", "glob.iglob") and node.args:
            return self.path(node.args[0], deep + 1)
        module = self.called(node.func) in ("os.listdir", "os.scandir", "os.walk")
        place = (node.args[0] if node.args else None) if module else getattr(node.func, "value", None)
        directory = "." if place is None else self.path(place, deep + 1)
        return None if directory is None or short == "listdir" else f"{directory}/{{}}"

    def is_agents(self, node: ast.expr) -> bool:
        """Whether a path is known and may be the agent's."""
        path = self.path(node)
        return path is not None and not is_safe(path)

    def in_work_directory(self, node: ast.expr) -> bool:
        """Like `is_agents`, without places in which the tests keep their own files."""
        path = self.path(node)
        return path is not None and not is_safe(path) and not path.startswith(_OWN)

    def is_tests(self, node: ast.expr) -> bool:
        """Whether all paths in an expression are of the tests, and there is one."""
        found = [path for path in self._paths(node) if not _NO_PATH.fullmatch(path)]
        return any("__file__" in ast.unparse(i) for i in self._open(node)) or (
            bool(found) and all(map(is_safe, found))
        )

    def _paths(self, node: ast.AST, deep: int = 0) -> Iterator[str]:
        """The paths in an expression, each as a whole."""
        if isinstance(node, ast.Name) and deep < _MAX_DEPTH:
            node, deep = self.value(node), deep + 1
        path = self.path(node) if isinstance(node, ast.expr) else None
        if path is not None:
            yield path
        elif not isinstance(node, ast.Name):
            for child in ast.iter_child_nodes(node):
                yield from self._paths(child, deep)

    def _open(self, node: ast.expr, deep: int = 0) -> Iterator[ast.AST]:
        for inner in ast.walk(node):
            yield inner
            if isinstance(inner, ast.Name) and inner.id in self._values and deep < _MAX_DEPTH:
                yield from self._open(self._values[inner.id], deep + 1)


def _several(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Names that stand for several values: variables of loops and parametrized tests, for the elements of a list, and parameters, for what the
    source calls their function with. A parameter of two functions stands for nothing."""
    found: dict[str, list[ast.expr]] = {}
    parameters: dict[str, list[str]] = {}
    for node in nodes_of(tree):
        match node:
            case ast.For(ast.Name(name), values) | ast.comprehension(ast.Name(name), values):
                found.setdefault(name, []).append(ast.Starred(values))
            case ast.Call(ast.Attribute(attr="parametrize"), [ast.Constant(str(name)), values, *_]):
                found.setdefault(name, []).append(ast.Starred(values))
            case ast.FunctionDef():
                parameters[node.name] = [argument.arg for argument in node.args.args]
    often = Counter(name for names in parameters.values() for name in names)
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in parameters:
            given = [*zip(parameters[node.func.id], node.args, strict=False)]
            given += [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg is not None]
            for name, value in given:
                if often[name] == 1 and not isinstance(value, ast.Starred):
                    found.setdefault(name, []).append(value)
    return found


def known_as(target: ast.expr) -> str:
    """The name under which a value is known: a variable, or an attribute of an object (`self.binary`), by its own name."""
    if isinstance(target, ast.Attribute):
        return f".{target.attr}"
    return target.id if isinstance(target, ast.Name) else ""


def given_by_definition(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """A parameter has the value that its pytest fixture returns or yields; an object has the attributes that its class sets."""
    if isinstance(node, ast.ClassDef):
        return [
            (f".{target.id}", value)
            for inner in node.body
            for target, value in bindings(inner)
            if isinstance(target, ast.Name)
        ]
    if not isinstance(node, ast.FunctionDef) or not any(
        "fixture" in ast.unparse(d) for d in node.decorator_list
    ):
        return []
    given = [n.value for n in ast.walk(node) if isinstance(n, ast.Return | ast.Yield) and n.value is not None]
    return [(node.name, value) for value in given]


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Names that a statement binds, and to what; iteration binds to what it iterates over."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.With | ast.AsyncWith):
        yield from (
            (item.optional_vars, item.context_expr) for item in node.items if item.optional_vars is not None
        )
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, node.iter
        match node.target, node.iter:
            case ast.Tuple([place, *_]), ast.Call(ast.Attribute(attr="walk")):
                yield place, node.iter
            case ast.Tuple([_, one]), ast.Call(ast.Name("enumerate"), [listed, *_]):
                yield one, listed
