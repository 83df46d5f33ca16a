"""The public API: every name is documented and typed, and the guides use no other part of the product."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from tests.guides import PAGES, REPOSITORY, blocks

PUBLIC = (
    "orchestrator.api",
    "orchestrator.api.testing",
    "orchestrator.api.plugins",
    "scaffolds.base",
    "scaffolds.declare",
    "scaffolds.at_once",
    "scaffolds.seen",
    "scaffolds.tcp",
    "scaffolds.context.base",
    "sandboxes.base",
)
OURS = ("orchestrator", "scaffolds", "sandboxes", "trainer", "ops", "tests")
CALLED = ("api", "publish.py", "evaluation.py", "queries", "settings", "export/rows.py", "export/packages.py")
"""Parts of `orchestrator` whose errors a caller of the API sees."""


def public_names(module: ModuleType) -> list[str]:
    """The names of `__all__`; of a module without it, those that it makes itself, except type variables."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    made: list[str] = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            made.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            made.append(_assigned(node))
    return [
        name for name in made if not name.startswith("_") and not isinstance(getattr(module, name), TypeVar)
    ]


def _assigned(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


NAMES = [(module, name) for module in PUBLIC for name in public_names(importlib.import_module(module))]


def typed(function: Any) -> bool:
    """Whether all parameters and the result have a type."""
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    return signature.return_annotation is not inspect.Signature.empty and all(
        each.annotation is not inspect.Parameter.empty for each in parameters
    )


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public functions of a class, written in it or in a base of ours."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in OURS:
            for name, member in vars(base).items():
                function = (
                    getattr(member, "fget", None)
                    or getattr(member, "func", None)
                    or getattr(member, "__func__", member)
                )
                if not name.startswith("_") and inspect.isfunction(function):
                    yield name, function


def described(module: ModuleType, name: str) -> bool:
    """Whether a text follows the assignment of a name, in the module that makes it."""
    for part in (module, *map(importlib.import_module, _origins(module, name))):
        body = ast.parse(inspect.getsource(part)).body
        for statement, following in pairwise(body):
            assigned = isinstance(statement, ast.Assign | ast.AnnAssign) and _assigned(statement) == name
            if assigned and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                return True
    return False


def _origins(module: ModuleType, name: str) -> Iterator[str]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom) and node.module and name in (alias.name for alias in node.names):
            yield node.module


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_public_name_is_documented_and_typed(module: str, name: str) -> None:
    loaded = importlib.import_module(module)
    value = getattr(loaded, name)
    if inspect.isclass(value):
        text = vars(value).get("__doc__") or ""
        assert text and not text.startswith(f"{name}("), "a class has a docstring of its own"
        if is_dataclass(value):
            assert all(each.type is not None for each in fields(value))
        assert [member for member, function in members(value) if not typed(function)] == []
        assert [member for member, function in members(value) if not inspect.getdoc(function)] == []
    elif inspect.isroutine(value):
        assert inspect.getdoc(value) and typed(inspect.unwrap(value))
    else:
        assert described(loaded, name)


def test_the_docstring_of_the_api_names_what_is_public() -> None:
    text = importlib.import_module("orchestrator.api").__doc__ or ""
    guide = PAGES["ops/guides/python-api.md"]
    for module in PUBLIC[1:]:
        assert f"`{module}`" in text, module
        assert f"`{module}`" in guide or module.startswith("orchestrator.api"), module
    assert "private" in text


def options_in_errors(source: str) -> list[str]:
    """The texts of raised errors that name an option of the command line, such as `--label`."""
    texts = [
        part.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return [text for text in texts if re.search(r"(?<!\w)--[a-z]", text)]


def test_errors_that_a_caller_sees_name_arguments_and_no_options() -> None:
    paths = [REPOSITORY / "orchestrator" / part for part in CALLED]
    files: list[Path] = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    found = {file.name: texts for file in files if (texts := options_in_errors(file.read_text()))}
    assert len(files) > 50 and found == {}
    assert options_in_errors("raise ValueError(f'--label {label} is wrong')") == ["--label "]


def imported(source: str) -> Iterator[str]:
    """The modules of ours that a program imports."""
    for node in ast.walk(ast.parse(source)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name for name in names if name.partition(".")[0] in OURS)


@pytest.mark.parametrize("page", PAGES)
def test_python_in_guides_imports_public_modules_only(page: str) -> None:
    used = {name for block in blocks(page) if block.language == "python" for name in imported(block.text)}
    assert used <= set(PUBLIC)


def test_the_examples_of_scaffolds_import_public_modules_only() -> None:
    """A user's scaffold starts as a copy of one."""
    examples = sorted((REPOSITORY / "agents/scaffolds/examples").glob("*.py"))
    used = {name for file in examples for name in imported(file.read_text(encoding="utf-8"))}
    assert len(examples) >= 3 and "scaffolds.base" in used and used <= set(PUBLIC)


def test_there_are_programs_in_guides_and_an_import_of_a_private_module_is_found() -> None:
    assert set(imported("import orchestrator.pool.runs\nfrom sandboxes.local import x\nimport json")) == {
        "orchestrator.pool.runs",
        "sandboxes.local",
    }
    assert sum(block.language == "python" for page in PAGES for block in blocks(page)) >= 8
