"""Writes TOML: what penstock.toml needs, in an order that stays."""

import json
from collections.abc import Mapping
from typing import Any


def to_toml(table: Mapping[str, Any]) -> str:
    """Text that `tomllib` reads back as `table`. Tables and keys are sorted; tables in arrays are written inline.

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
    blocks: list[str] = []
    _tables(table, (), blocks)
    return "\n".join(blocks)


def _tables(table: Mapping[str, Any], path: tuple[str, ...], blocks: list[str]) -> None:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if plain:
        lines = [f"[{'.'.join(map(_key, path))}]"] if path else []
        lines += [f"{_key(key)} = {_value(value)}" for key, value in sorted(plain.items())]
        blocks.append("\n".join(lines) + "\n")
    for key, value in sorted(table.items()):
        if isinstance(value, Mapping):
            _tables(value, (*path, key), blocks)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in sorted(value.items())) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False)
