"""Loads a provider from a name or a `module:class`."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from sandboxes.base import Provider


def load(reference: str) -> Provider:
    """A provider by its entry point, or by `module:class`, created without arguments. `ValueError` lists the known ones."""
    known = {each.name: each.value for each in entry_points(group="penstock.sandboxes")}
    target = reference if ":" in reference else known.get(reference)
    if target is None:
        raise ValueError(f"unknown sandbox provider {reference!r}; known: {', '.join(sorted(known))}")
    module, _, attribute = target.partition(":")
    provider = getattr(import_module(module), attribute)()
    if not isinstance(provider, Provider):
        raise ValueError(f"{target} is not a sandbox provider")
    return provider
