"""Finding a scaffold: a path (`DIRECTORY` with a scaffold.toml or one Python file, `FILE.toml`, `FILE.py[:CLASS]`) → `module:attribute` → a
built-in name → an entry point of the group `penstock.scaffolds`.

Scaffolds are imported only when requested.
"""

import importlib
import importlib.util
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from scaffolds.base import Scaffold
from scaffolds.declare import ATTRIBUTE, source_sha
from scaffolds.reference import is_path, split_path
from scaffolds.scaffold_toml import TOML, from_toml

GROUP = "penstock.scaffolds"


def find(name: str) -> Scaffold:
    """The scaffold with the name or path `name`. ValueError, one sentence, lists the known ones."""
    if (place := split_path(name)) is not None:
        path, attribute = place
        return _in_file(Path(path), attribute) if path.endswith(".py") else _at(Path(path))
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            declared = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # also those of the module itself
            raise ValueError(f"scaffold {name!r} cannot be imported: {error}") from error
        return scaffold_of(declared)
    for entry in _entries():
        if entry.name == name:
            try:
                declared = entry.load()
            except Exception as error:  # also those of its module
                raise ValueError(f"scaffold {name!r} cannot be imported: {error}") from error
            return scaffold_of(declared)
    raise ValueError(f"unknown scaffold {name!r}; known: {', '.join(known()) or 'none'}")


def _at(path: Path) -> Scaffold:
    """The scaffold of a TOML file, or of a directory."""
    if not path.is_dir():
        if not path.exists():
            raise ValueError(f"scaffold {path} does not exist: give a directory, a .toml or a .py file")
        return from_toml(path)
    if (path / TOML).exists():
        return from_toml(path / TOML)
    files = sorted(path.glob("*.py"))
    if len(files) != 1:
        raise ValueError(
            f"{path} has no {TOML} and {len(files)} Python files: name the one that is meant, {path}/FILE.py"
        )
    return _in_file(files[0], "")


def file_of(name: str) -> str:
    """The file that defines the scaffold of a path: of a directory its scaffold.toml or its only Python file. Any other name stays."""
    path = Path(name)
    if not is_path(name) or not path.is_dir():
        return name
    found = [path / TOML] if (path / TOML).exists() else sorted(path.glob("*.py"))
    return str(found[0]) if len(found) == 1 else name


def _in_file(path: Path, attribute: str) -> Scaffold:
    """The scaffold called `attribute`, or the only one, of a Python file that need not be installed."""
    module = _loaded(path.resolve())
    if attribute:
        return scaffold_of(getattr(module, attribute, None))
    declared = [
        value for value in vars(module).values() if isinstance(value, type) and ATTRIBUTE in vars(value)
    ]
    defined = [value for value in declared if value.__module__ == module.__name__]
    if len(defined) != 1:
        raise ValueError(
            f"{path} declares {len(defined)} scaffolds: name the one that is meant, {path}:CLASS"
        )
    return scaffold_of(defined[0])


@cache
def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"penstock_scaffold_{source_sha(path)[:16]}" if path.is_file() else "absent", path
    )
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"the Python file {path} does not exist")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its classes are looked up here
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def known() -> list[str]:
    """The registered names, sorted."""
    return sorted({entry.name for entry in _entries()})


def scaffold_of(declared: Any) -> Scaffold:
    """The scaffold of an object in a module or an entry point: a decorated class, a `Scaffold`, or a path to a TOML file."""
    if isinstance(declared, Scaffold):
        return declared
    if isinstance(declared, Path):
        return from_toml(declared)
    found = vars(declared).get(ATTRIBUTE) if isinstance(declared, type) else None
    if not isinstance(found, Scaffold):
        raise ValueError(
            f"{declared!r} is not declared as a scaffold: decorate the class with `@scaffold(…)`"
        )
    return found


def _entries() -> list[EntryPoint]:
    """Entry points, ours first: another package cannot replace a built-in by taking its name. Read once per search path: that takes milliseconds,
    and every attempt finds a scaffold."""
    return _read(tuple(sys.path))


@cache
def _read(places: tuple[str, ...]) -> list[EntryPoint]:
    entries = entry_points(group=GROUP)
    return sorted(entries, key=lambda entry: entry.dist is None or entry.dist.name != "penstock")
