"""A name in backticks in a docstring or a comment, such as `gateway_client.RecordedCompletion`, names something that its module has."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from orchestrator.settings.config import Config
from tests.architecture.test_architecture import CODE, REPOSITORY

PRODUCT = ("orchestrator", "sandboxes", "agents", "trainer", "ops")
REFERENCE = re.compile(r"(?<!`)`([a-z_]+)\.([A-Za-z_]+)(?:\(\))?`")
SUFFIXES = {"md", "py", "sh", "toml"}
# A field of ATIF, a column of a table, a class of aiohttp: a module of ours has the same name.
OTHERS = {"metrics.extra", "processes.holds", "web.Application"}
Modules = Mapping[str, set[str]]  # a module's name, without its package → the names in it


def names_in(source: str) -> set[str]:
    """Every identifier of a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name():
                found.add(node.id)
            case ast.Attribute():
                found.add(node.attr)
            case ast.arg() | ast.keyword() if node.arg:
                found.add(node.arg)
            case ast.alias():
                found.add((node.asname or node.name).rpartition(".")[2])
    return found


def values_in(source: str) -> set[str]:
    """The variables, parameters and attributes of a module: a dot after one of them is not a module's."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.arg():
                found.add(node.arg)
            case ast.Attribute():
                found.add(node.attr)
    return found


def prose(source: str) -> Iterator[str]:
    """The docstrings and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def keys(section: str) -> set[str]:
    """The keys of a section of the configuration; empty if it has no such section."""
    field = Config.model_fields.get(section)
    return set(getattr(field.annotation, "model_fields", ())) if field is not None else set()


def dead(source: str, modules: Modules) -> list[str]:
    """The references of a module to names that no module of that name has. A variable's attribute or a key of the configuration is none."""
    written = {found for text in prose(source) for found in REFERENCE.findall(text)}
    own = values_in(source) if written else set()
    return sorted(
        f"{module}.{name}"
        for module, name in written
        if module in modules
        and name not in modules[module]
        and name not in SUFFIXES
        and module not in own
        and f"{module}.{name}" not in OTHERS
        and name not in keys(module)
    )


@cache
def product() -> dict[Path, str]:
    files = {path.relative_to(REPOSITORY): path for path in CODE}
    return {
        name: path.read_text(encoding="utf-8") for name, path in files.items() if name.parts[0] in PRODUCT
    }


def test_every_name_in_backticks_is_in_its_module() -> None:
    written = {path: source for path, source in product().items() if REFERENCE.search(source)}
    wanted = {module for source in written.values() for module, _ in REFERENCE.findall(source)}
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path, source in product().items():
        for package in wanted.intersection(path.parent.parts):
            modules[package] |= {path.stem, *path.parts}
        module = path.parent.name if path.stem == "__init__" else path.stem
        if module in wanted:
            modules[module] |= names_in(source)
    found = {str(path): dead(source, modules) for path, source in written.items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_reference_to_a_name_that_is_gone_is_found() -> None:
    source = '"""See `results.Outcome`, `results.FaultOutcome`, `results.md`, `settings.lr`, `policy.model`, `elsewhere.X`."""\n'
    modules = {"results": {"FaultOutcome"}, "settings": set[str](), "policy": set[str]()}
    assert dead(source, modules) == ["results.Outcome", "settings.lr"]
    assert dead(source + "def f(settings): ...  # `results.old()`\n", modules) == [
        "results.Outcome",
        "results.old",
    ]
