"""Plug-ins by entry point, loaded lazily by name. An unknown name lists the known ones.

Groups: penstock.scaffolds, penstock.context_policies, penstock.sandboxes, penstock.policies, penstock.process_signals. Built-in scaffolds, context
policies and sandboxes register the same way.
"""

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted


def names(group: str) -> list[str]:
    """The registered names of `penstock.<group>`, sorted."""
    return sorted({entry.name for entry in _entries(group)})


def load(group: str, name: str) -> Any:
    """The object registered as `name`; ConfigurationError lists the known names."""
    for entry in _entries(group):
        if entry.name == name:
            return entry.load()
    kinds = {
        "policies": "policy",
        "context_policies": "context policy",
        "sandboxes": "sandbox provider",
    }
    kind = kinds.get(group, group.removesuffix("s"))
    raise ConfigurationError(f"unknown {kind} {quoted(name)}; known: {', '.join(names(group)) or 'none'}")


def _entries(group: str) -> EntryPoints:
    """Read once per process and search path: that takes milliseconds, and each task needs them."""
    return _read(f"penstock.{group}", tuple(sys.path))


@cache
def _read(group: str, places: tuple[str, ...]) -> EntryPoints:
    return entry_points(group=group)


def provider(name: str, tables: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
    """The sandbox provider `name`, with its table of `[sandbox]` if it has settings. Raises ConfigurationError, which names the key."""
    provider_class = load("sandboxes", name)
    if not tables or name not in tables:
        return provider_class()
    try:
        return provider_class.configured(tables[name])
    except ValueError as error:
        key = "images" if name == "bubblewrap" else name
        raise ConfigurationError(f"sandbox.{key}.{error}") from error
