"""Writes TOML in a stable order."""

from collections.abc import Mapping
from typing import Any

import tomlkit


def to_toml(table: Mapping[str, Any]) -> str:
    """Text that `tomllib` reads back as `table`. Tables and keys are sorted.

    >>> print(to_toml({"run": {"name": "first"}, "rollout": {"slots": 8, "scaffolds": {"shell": 1.0}}}), end="")
    [rollout]
    slots = 8
    <BLANKLINE>
    [rollout.scaffolds]
    shell = 1.0
    <BLANKLINE>
    [run]
    name = "first"
    """
    return tomlkit.dumps(table, sort_keys=True)
