"""A topology's file with other counts. The rest stays as a person wrote it: order, comments, the text after a number."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import tomlkit
from tomlkit.items import Table

Key = tuple[str, int | None, str]
"""A table, its index if several have that name, and a key in it: ("runners", 0, "replicas")."""


def with_counts(raw: dict[str, Any], counts: Mapping[Key, int]) -> dict[str, Any]:
    """A copy of a file's content, with these numbers."""
    edited = deepcopy(raw)
    for key, count in counts.items():
        _table(edited, key)[key[2]] = count
    return edited


def edited(text: str, counts: Mapping[Key, int]) -> str:
    """The file's text with these numbers.

    >>> print(edited("[gateways]  # of all\\nport = 80", {("gateways", None, "replicas"): 2}), end="")
    [gateways]  # of all
    port = 80
    replicas = 2
    """
    document = tomlkit.parse(text if text.endswith("\n") else f"{text}\n")
    for key, count in counts.items():
        _put(_table(document, key), key[2], count)
    return tomlkit.dumps(document)


def spelt(key: Key) -> str:
    """
    >>> spelt(("runners", 1, "replicas")), spelt(("gateways", None, "replicas"))
    ('runners[1].replicas', 'gateways.replicas')
    """
    table, index, name = key
    return f"{table}.{name}" if index is None else f"{table}[{index}].{name}"


def _table(raw: dict[str, Any], key: Key) -> Any:
    """The table that contains a key; created if the file leaves it to its defaults."""
    name, index, _ = key
    return raw.setdefault(name, {}) if index is None else raw.setdefault(name, [{}])[index]


def _put(table: Any, name: str, count: int) -> None:
    if name in table or not isinstance(table, Table):
        table[name] = count
        return
    body = table.value.body
    end = len(body)
    while end and body[end - 1][0] is None:
        end -= 1
    trailing = body[end:]  # blank lines and comments at a table's end are about the next one
    del body[end:]
    table[name] = count
    body.extend(trailing)
