"""From a name or a `module:class` to a provider."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from sandboxes.base import Provider


def load(reference: str) -> Provider:
    """A provider by its entry point, or by `module:class`, made without arguments. `ValueError` lists the known."""
    known = {each.name: each.value for each in entry_points(group="penstock.sandboxes")}
    target = reference if ":" in reference else known.get(reference)
    if target is None:
        raise ValueError(f"no sandbox provider is called {reference!r}; there are {', '.join(sorted(known))}")
    module, _, attribute = target.partition(":")
    provider = getattr(import_module(module), attribute)()
    if not isinstance(provider, Provider):
        raise ValueError(f"{target} is no sandbox provider")
    return provider
