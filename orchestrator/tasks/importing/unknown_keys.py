"""Keys of a task.toml that the format does not know, such as where an image came from, moved below `[metadata]`, which is the author's own."""

import re
import tomllib
from collections.abc import Collection, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Final

import tomlkit
import tomlkit.exceptions

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.keys import FREE, TABLES, is_foreign, shown
from orchestrator.tasks.plain_text import as_plain_text
from orchestrator.tasks.settings import Metadata
from orchestrator.tasks.sizes import read_task_toml
from sandboxes.base import File
from sandboxes.text_files import text_of

_SETTINGS: Final = "task.toml"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")
_MAX_NAMED: Final = 5


def check_key(name: str) -> tuple[str, ...]:
    """The parts of a key to move: KEY, or TABLE.KEY. ValueError for other text."""
    parts = tuple(name.split("."))
    if not all(parts) or len(parts) > 2 or (len(parts) == 2 and parts[0] not in TABLES):
        tables = ", ".join(TABLES)
        raise ValueError(
            f"--move-key {quoted(name)} names no key: write KEY, or TABLE.KEY with one of {tables}"
        )
    return parts


def unknown_moved(bundle: Bundle, named: Collection[tuple[str, ...]]) -> tuple[Bundle, str]:
    """The bundle with the unknown keys in `named` below `[metadata]`, and sentences that name them and the other unknown ones, empty without any.
    A key of an inner table or of a step stays, and one that may be meant as a key of the format or of `[metadata]`, or whose place is taken.
    Settings that cannot be read stay. ValueError for those that cannot be written again."""
    if _SETTINGS not in bundle.files:
        return bundle, ""
    try:
        file = as_plain_text({_SETTINGS: bundle.files[_SETTINGS]})[_SETTINGS]
        text = text_of(file.data, _SETTINGS)
        tables = read_task_toml(text)
    except ValueError:  # the task says what is wrong
        return bundle, ""
    unknown = _unknown(tables)
    keys = [key for key in unknown if key in named]
    left = [key for key in unknown if key not in named and all(_PLAIN.fullmatch(part) for part in key)]
    notes = []
    if left:
        options = " ".join(f"--move-key {'.'.join(key)}" for key in left[:_MAX_NAMED])
        notes.append(
            f"keys that are not known can be moved below [{FREE}], where they have no effect: {options}"
        )
    if not keys:
        return bundle, "; ".join(notes)
    names = ", ".join(shown(".".join(key), table=isinstance(_value(tables, key), dict)) for key in keys)
    notes.insert(0, f"moved below [{FREE}], where they have no effect: {names}")
    moved = File(_written(text, tables, keys, names).encode(), file.mode)
    return replace(bundle, files={**bundle.files, _SETTINGS: moved}), "; ".join(notes)


def _written(text: str, tables: MutableMapping[str, Any], keys: Sequence[tuple[str, ...]], names: str) -> str:
    """The settings with the keys moved, in `tables`, too. ValueError if a program cannot write them."""
    document = tomlkit.parse(text)
    try:
        for each in (tables, document):
            _move(each, keys)
        written = tomlkit.dumps(document)
        is_same = tomllib.loads(written) == tables
    except (tomlkit.exceptions.TOMLKitError, tomllib.TOMLDecodeError):
        is_same = False
    if not is_same:
        raise ValueError(f"{_SETTINGS}: {names} cannot be moved by a program: move them below [{FREE}]")
    return written


def _unknown(tables: MutableMapping[str, Any]) -> list[tuple[str, ...]]:
    """The keys that can be moved, each by the names of its table, if it is in one, and its own."""
    free = tables.get(FREE, {})
    keys: list[tuple[str, ...]] = []
    for name, value in tables.items():
        if name in TABLES and isinstance(value, dict):
            taken = free.get(name, {}) if isinstance(free, dict) else None
            keys += [
                (name, key)
                for key, held in value.items()
                if isinstance(taken, dict) and key not in taken and is_foreign(name, key, held)
            ]
        elif (
            isinstance(free, dict)
            and name not in free
            and name not in Metadata.model_fields  # it would be read there
            and is_foreign("", name, value)
        ):
            keys.append((name,))
    return keys


def _value(tables: MutableMapping[str, Any], key: Sequence[str]) -> Any:
    for name in key:
        tables = tables[name]
    return tables


def _move(tables: MutableMapping[str, Any], keys: Sequence[Sequence[str]]) -> None:
    for *table, key in keys:
        value = _value(tables, table).pop(key)
        place = tables.setdefault(FREE, {})
        for name in table:
            place = place.setdefault(name, {})
        place[key] = value
