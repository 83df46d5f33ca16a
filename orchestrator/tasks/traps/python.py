"""The rules for Python files of the tests."""

import ast
from collections.abc import Iterator
from typing import Final

from orchestrator.tasks.traps.rules import Rule, Trap
from orchestrator.tasks.traps.tree import is_safe

_RUNS: Final = frozenset(
    {"run", "Popen", "call", "check_call", "check_output", "system", "popen", "getoutput", "getstatusoutput"}
)
_LOADS: Final = frozenset(
    {
        "pickle.load",
        "pickle.loads",
        "marshal.load",
        "marshal.loads",
        "shelve.open",
        "yaml.load",
        "dill.load",
        "dill.loads",
        "cloudpickle.load",
        "cloudpickle.loads",
        "jsonpickle.decode",
        "joblib.load",
        "yaml.unsafe_load",
        "yaml.full_load",
        "pandas.read_pickle",
        "pd.read_pickle",
        "pandas.eval",
        "pd.eval",
        "sympify",
        "sympy.sympify",
        "parse_expr",
        "sympy.parse_expr",
        "numexpr.evaluate",
    }
)
_IMPORTS: Final = frozenset(
    {
        "importlib.util.spec_from_file_location",
        "runpy.run_path",
        "runpy.run_module",
        "importlib.machinery.SourceFileLoader",
    }
)
_WRAPPER: Final = "PENSTOCK_UNTRUSTED"


def python_traps(file: str, source: str, agent_modules: frozenset[str], first: int = 1) -> list[Trap]:
    """The traps of one Python source whose first line is line `first` of the file; none if it is not Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    lines = source.splitlines()
    found = {(node.lineno, rule) for node, rule in _found(tree, agent_modules)}
    return [
        Trap(rule=rule, file=file, line=line + first - 1, text=lines[line - 1].strip())
        for line, rule in sorted(found)
    ]


def _found(tree: ast.Module, agent_modules: frozenset[str]) -> Iterator[tuple[ast.expr | ast.stmt, Rule]]:
    harmless = _harmless_archives(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            if any(name.partition(".")[0] in agent_modules for name in names):
                yield node, Rule.IMPORTED
        elif isinstance(node, ast.Compare):
            if any(
                isinstance(op, ast.In) and _reads(of)
                for op, of in zip(node.ops, node.comparators, strict=True)
            ):
                yield node, Rule.SOMEWHERE
        elif isinstance(node, ast.Call):
            rule = _call(node, harmless) or _imported(node, agent_modules)
            if rule is not None:
                yield node, rule


def _imported(node: ast.Call, agent_modules: frozenset[str]) -> Rule | None:
    """`import_module("total")`, where `total` is the agent's."""
    argument = node.args[0] if node.args else None
    if ast.unparse(node.func).rpartition(".")[2] not in ("import_module", "__import__"):
        return None
    name = argument.value if isinstance(argument, ast.Constant) else None
    return Rule.IMPORTED if isinstance(name, str) and name.partition(".")[0] in agent_modules else None


def _reads(node: ast.expr) -> bool:
    """Whether an expression reads the whole text of a file that may be the agent's, or a program's whole output."""
    texts = [a.value for a in ast.walk(node) if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if texts and all(is_safe(text) for text in texts):
        return False
    found = {a.attr for a in ast.walk(node) if isinstance(a, ast.Attribute)}
    return bool(found & {"read", "read_text", "stdout", "check_output"})


def _call(node: ast.Call, harmless: frozenset[str]) -> Rule | None:
    name = ast.unparse(node.func)
    short = name.rpartition(".")[2]
    argument = node.args[0] if node.args else None
    constant = isinstance(argument, ast.Constant)
    if short == "load" and _pickled(node):
        return Rule.PROGRAM_TEXT
    if (
        short in ("extractall", "unpack_archive")
        and name.partition(".")[0] not in harmless
        and _unpacks(node)
    ):
        return Rule.COPIED
    if name in ("eval", "exec") or name in _LOADS:
        return None if constant else Rule.PROGRAM_TEXT
    if name in _IMPORTS or name in ("importlib.import_module", "__import__"):
        safe = any(
            isinstance(a, ast.Constant) and isinstance(a.value, str) and is_safe(a.value) for a in node.args
        )
        return None if safe or (constant and name not in _IMPORTS) else Rule.IMPORTED
    if name in ("sys.path.insert", "sys.path.append"):
        added = node.args[-1] if node.args else None
        text = added.value if isinstance(added, ast.Constant) else ""
        work = (isinstance(text, str) and text in ("", ".", "./")) or (
            isinstance(text, str) and text.startswith("/app")
        )
        return (
            Rule.IMPORTED
            if (isinstance(added, ast.Constant) and work) or "getcwd" in ast.unparse(node)
            else None
        )
    if short in _RUNS and name.startswith(("subprocess.", "os.")) and argument is not None:
        return _run(node, argument)
    return None


def _harmless_archives(tree: ast.Module) -> frozenset[str]:
    """Names of zip archives, for which zipfile creates no links, and of archives that belong to the tests."""
    bound: list[tuple[ast.expr | None, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            bound += [(item.optional_vars, item.context_expr) for item in node.items]
        elif isinstance(node, ast.Assign):
            bound += [(target, node.value) for target in node.targets]
    return frozenset(
        name.id
        for name, value in bound
        if isinstance(name, ast.Name) and isinstance(value, ast.Call) and _harmless(value)
    )


def _harmless(archive: ast.AST) -> bool:
    texts = [a.value for a in ast.walk(archive) if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return (
        "ZipFile" in ast.unparse(archive)
        or (bool(texts) and is_safe(texts[0]))
        or (bool(texts) and texts[0].endswith(".zip"))
    )


def _unpacks(node: ast.Call) -> bool:
    """Whether unpacking creates links of an archive of the agent's, with any target."""
    chosen = next((k.value for k in node.keywords if k.arg == "filter"), None)
    if isinstance(chosen, ast.Constant) and chosen.value == "data":  # "tar" allows links to any target
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "extractall":
        return not _harmless(node.func.value)
    return not (node.args and _harmless(node.args[0]))


def _pickled(node: ast.Call) -> bool:
    """Whether arrays of the agent's may contain pickled objects."""
    chosen = next((k.value for k in node.keywords if k.arg == "allow_pickle"), None)
    if chosen is None or (isinstance(chosen, ast.Constant) and not chosen.value):
        return False
    source = node.args[0] if node.args else None
    return not (isinstance(source, ast.Constant) and isinstance(source.value, str) and is_safe(source.value))


def _run(node: ast.Call, given: ast.expr) -> Rule | None:
    text = ast.unparse(node)
    shell = any(
        k.arg == "shell" and isinstance(k.value, ast.Constant) and k.value.value for k in node.keywords
    )
    if (shell or text.startswith("os.")) and not isinstance(given, ast.Constant):
        return Rule.PROGRAM_TEXT
    if _WRAPPER in text:
        return None
    argv = (
        [e.value for e in given.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        if isinstance(given, ast.List | ast.Tuple)
        else []
    )
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        argv = given.value.split()
    runs = [
        a
        for a in argv
        if a.startswith("./")
        or a.startswith("/app/")
        or (a.endswith((".py", ".sh", ".js", ".rb")) and not is_safe(a))
    ]
    return Rule.AGENT_PROGRAM if runs else None
