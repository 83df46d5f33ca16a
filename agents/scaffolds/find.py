"""Finding a scaffold: a path → `module:attribute` → a built-in name → an entry point of the group `penstock.scaffolds`.

Nothing is imported before it is asked for.
"""

import importlib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from scaffolds.base import Scaffold
from scaffolds.declare import ATTRIBUTE
from scaffolds.scaffold_toml import TOML, from_toml

GROUP = "penstock.scaffolds"


def find(name: str) -> Scaffold:
    """The scaffold that `name` stands for. ValueError, one sentence, lists the known ones."""
    if name.endswith(".toml") or "/" in name:
        path = Path(name)
        return from_toml(path / TOML if path.is_dir() else path)
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            return scaffold_of(getattr(importlib.import_module(module), attribute))
        except (ImportError, AttributeError) as error:
            raise ValueError(f"scaffold {name!r} cannot be imported: {error}") from error
    for entry in _entries():
        if entry.name == name:
            return scaffold_of(entry.load())
    raise ValueError(f"unknown scaffold {name!r}; known: {', '.join(known()) or 'none'}")


def known() -> list[str]:
    """The registered names, sorted."""
    return sorted({entry.name for entry in _entries()})


def scaffold_of(declared: Any) -> Scaffold:
    """The scaffold behind what a module or an entry point holds: a decorated class, a `Scaffold`, or a path to a TOML file."""
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
    """Ours first: nobody replaces a built-in by taking its name."""
    entries = entry_points(group=GROUP)
    return sorted(entries, key=lambda entry: entry.dist is None or entry.dist.name != "penstock")
