"""The tests that a change adds or changes: those whose source differs from the one of the base."""

import ast
import subprocess
from collections.abc import Sequence
from pathlib import Path


def changed_tests(root: Path, base: str | None, changed: Sequence[str]) -> list[str]:
    """Functions, as pytest names them without parameters, in the changed test files; all of a file that is new. `base`: a commit, None if unknown."""
    found = []
    for path in changed:
        file = root / path
        if not (path.startswith("tests/") and Path(path).name.startswith("test_") and file.is_file()):
            continue
        before = _functions(_at(root, base, path)) if base else {}
        now = _functions(file.read_text(encoding="utf-8"))
        found += [f"{path}::{name}" for name, source in now.items() if before.get(name) != source]
    return found


def _at(root: Path, commit: str, path: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), "show", f"{commit}:{path}"], capture_output=True, text=True
    )
    return done.stdout if done.returncode == 0 else ""


def _functions(text: str) -> dict[str, str]:
    """Test functions, those of classes as `Class::name`, with their syntax: comments and layout do not count."""
    try:
        module = ast.parse(text)
    except SyntaxError:
        return {}
    found = {}
    for node in module.body:
        inner = node.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test") else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for function in inner:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith(
                "test_"
            ):
                found[prefix + function.name] = ast.dump(function)
    return found


def of(test: str) -> str:
    """A test's name without its parameters: `tests/x.py::test_y[1]` -> `tests/x.py::test_y`."""
    path, _, name = test.partition("::")
    return f"{path}::{name.partition('[')[0]}"
