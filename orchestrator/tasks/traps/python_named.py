"""Python that opens a file whose name the agent wrote: the answer `/tests/want` is right without the work."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from orchestrator.tasks.traps.python_names import PythonNames, bindings
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.python_tree import nodes_of
from orchestrator.tasks.traps.tree import listed

_OPENS: Final = listed(
    "open io.open codecs.open gzip.open pandas.read_csv pandas.read_json numpy.loadtxt numpy.load"
)
_READS: Final = frozenset({"read", "read_text", "readline"})
_METHODS: Final = frozenset({"read_text", "read_bytes", "open"})
_RESOLVED: Final = re.compile(
    r"\bresolve\(|realpath|relative_to\(|commonpath|samefile|is_symlink|islink|\.name\b|basename"
)
"""Words of tests that look at where a path leads."""
_FORMS: Final = listed(
    "startswith endswith fullmatch match search count isalnum isalpha isdecimal isdigit isidentifier isnumeric"
)
"""Functions that look at a name. One of letters and digits leads to no other directory."""
_FILES: Final = frozenset({"StringIO", "BytesIO"})
_LISTS: Final = listed("splitlines readlines split list tuple sorted filter map iter")


def named_files(tree: ast.Module, names: PythonNames, texts: Texts) -> Iterator[ast.expr]:
    """The calls that open a file by a name that a file of the agent's holds. None if the tests look at where paths lead."""
    opened = [
        (node, path) for node in nodes_of(tree) if isinstance(node, ast.Call) for path in _paths(node, names)
    ]
    own = _written(tree, texts)
    found = [node for node, path in opened if not names.is_tests(path) and _names_file(path, own, texts)]
    if found and not _RESOLVED.search(ast.unparse(tree)):
        yield from found


def _paths(node: ast.Call, names: PythonNames) -> Iterator[ast.expr]:
    """The path that a call opens: `open(got)`, `Path(got).read_text()`."""
    if names.called(node.func) in _OPENS:
        yield from (path for path in node.args[:1] if not _is_data(path, names))
    elif isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        owner = names.value(node.func.value)
        built = isinstance(owner, ast.Call) and names.called(owner.func).rpartition(".")[2] == "Path"
        if built or isinstance(owner, ast.BinOp):
            yield owner


def _is_data(given: ast.expr, names: PythonNames) -> bool:
    """Whether a function gets the text itself: `read_csv(StringIO(text))`, `loadtxt(text.splitlines())`."""
    value = names.value(given)
    match value:
        case ast.Subscript(lines, ast.Slice()):
            return _is_data(lines, names)
        case ast.List() | ast.ListComp() | ast.GeneratorExp():
            return True
        case ast.Call(ast.Attribute(_, name) | ast.Name(name)) if name in _LISTS:
            return True
    calls = (names.called(n.func) for n in ast.walk(value) if isinstance(n, ast.Call))
    return any(name.rpartition(".")[2] in _FILES for name in calls)


def _names_file(path: ast.expr, own: set[str], texts: Texts) -> bool:
    return any(
        (isinstance(n, ast.Name) and n.id in own) or (isinstance(n, ast.Call) and _is_content(n, texts))
        for n in ast.walk(path)
    )


def _is_content(node: ast.expr, texts: Texts) -> bool:
    """Whether a text is what a file of the agent's holds: `open("/app/out").read().strip()`."""
    reads = any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in _READS
        for n in ast.walk(node)
    )
    return reads and texts.carries(node)


def _written(tree: ast.Module, texts: Texts) -> set[str]:
    """The variables that are set to nothing else, and that no test compares or knows in another way."""
    often: dict[str, list[ast.expr | None]] = {}
    for node in nodes_of(tree):
        for target, value in bindings(node):
            for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
                own = isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and isinstance(
                    target, ast.Name
                )
                often.setdefault(name, []).append(value if own else None)
        if isinstance(node, ast.arg):
            often.setdefault(node.arg, []).append(None)
        for name in _known(node):
            often.setdefault(name, []).append(None)
    return {
        name
        for name, values in often.items()
        if all(value is not None and _is_content(value, texts) for value in values)
    }


def _known(node: ast.AST) -> Iterator[str]:
    """The names that a condition looks at: `got == "total.csv"`, `got.startswith("/app/")`, `re.fullmatch(…, got)`, `all(… for c in got)`."""
    match node:
        case ast.comprehension(_, ast.Name(name)):
            yield name
        case ast.Call(ast.Name("int" | "float"), [ast.Name(name)]):
            yield name
        case ast.Compare(left, _, others):
            yield from (side.id for side in (left, *others) if isinstance(side, ast.Name))
        case ast.Call(ast.Attribute(owner, method), given) if method in _FORMS:
            yield from (side.id for side in (owner, *given) if isinstance(side, ast.Name))
