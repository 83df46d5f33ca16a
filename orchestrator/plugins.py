"""Plug-ins by entry point, loaded lazily by name. An unknown name lists the known ones.

Groups: penstock.scaffolds, penstock.sandboxes, penstock.verifiers, penstock.policies. The built-ins register the same way.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from orchestrator.contracts.errors import ConfigurationError


def names(group: str) -> list[str]:
    """The registered names of `penstock.<group>`, sorted."""
    return sorted({entry.name for entry in entry_points(group=f"penstock.{group}")})


def load(group: str, name: str) -> Any:
    """The object registered as `name`; ConfigurationError lists what is known."""
    for entry in entry_points(group=f"penstock.{group}"):
        if entry.name == name:
            return entry.load()
    kind = {"policies": "policy", "sandboxes": "sandbox provider"}.get(group, group.removesuffix("s"))
    raise ConfigurationError(f"unknown {kind} {name!r}; known: {', '.join(names(group)) or 'none'}")


def provider(name: str, tables: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """The sandbox provider `name`, with its table of `[sandbox]` where it has settings. Raises ConfigurationError, which names the key."""
    kind = load("sandboxes", name)
    if not tables or name not in tables:
        return kind()
    try:
        return kind.configured(tables[name])
    except ValueError as error:
        raise ConfigurationError(f"sandbox.{name}.{error}") from error
