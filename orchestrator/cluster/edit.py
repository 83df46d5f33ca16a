"""A topology's file with other counts. All else in it stays as a person wrote it: order, comments, what a number is followed by."""

import re
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from orchestrator.contracts.errors import ConfigurationError

Key = tuple[str, int | None, str]
"""A table, which one where there are several of that name, and a key in it: ("runners", 0, "replicas")."""

_HEADER = re.compile(r"\s*(?P<open>\[\[?)\s*(?P<name>[\w.\-\"' ]+?)\s*\]\]?\s*(#.*)?")


def with_counts(raw: dict[str, Any], counts: Mapping[Key, int]) -> dict[str, Any]:
    """A copy of what a file holds, with these numbers."""
    made = deepcopy(raw)
    for (table, index, key), count in counts.items():
        if index is None:
            made.setdefault(table, {})[key] = count
        else:
            made.setdefault(table, [{}])[index][key] = count
    return made


def edited(text: str, counts: Mapping[Key, int], source: str) -> str:
    """The file's text with these numbers. ConfigurationError where they stand in a way that is not found: in an inline table, behind a dotted key."""
    lines = text.splitlines(keepends=True)
    for key, count in counts.items():
        _put(lines, key, count)
    made = "".join(lines)
    try:
        found = tomllib.loads(made)
    except tomllib.TOMLDecodeError:
        found = {}
    if found != with_counts(
        tomllib.loads(text), counts
    ):  # whoever wrote it did so in another way than we look for
        wanted = ", ".join(f"{spelt(key)} = {count}" for key, count in counts.items())
        raise ConfigurationError(
            f"{source} is written in a way that is not changed here: write {wanted} into it yourself"
        )
    return made


def spelt(key: Key) -> str:
    """
    >>> spelt(("runners", 1, "replicas")), spelt(("gateways", None, "replicas"))
    ('runners[1].replicas', 'gateways.replicas')
    """
    table, index, name = key
    return f"{table}.{name}" if index is None else f"{table}[{index}].{name}"


def _put(lines: list[str], key: Key, count: int) -> None:
    table, index, name = key
    opens = "[" if index is None else "[["
    headers = [at for at, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip("\r\n"))]
    own = [at for at in headers if _is(lines[at], opens, table)]
    if len(own) <= (index or 0):  # it has been what the defaults are
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        lines.append(f"\n{opens}{table}{']' * len(opens)}\n{name} = {count}\n")
        return
    first = own[index or 0]
    last = next((at for at in headers if at > first), len(lines))
    for at in range(first + 1, last):
        if re.match(rf"\s*{name}\s*=", lines[at]):
            lines[at] = re.sub(r"=(\s*)[\d_]+", rf"=\g<1>{count}", lines[at], count=1)
            return
    if not lines[first].endswith("\n"):
        lines[first] += "\n"
    lines.insert(first + 1, f"{name} = {count}\n")


def _is(line: str, opens: str, table: str) -> bool:
    found = _HEADER.fullmatch(line.rstrip("\r\n"))
    return found is not None and found["open"] == opens and found["name"] == table
