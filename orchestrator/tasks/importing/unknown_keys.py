"""Keys of a task.toml that the format does not know, such as where an image came from, moved below `[metadata]`, which is the author's own."""

import tomllib
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Final

import tomlkit
import tomlkit.exceptions

from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.keys import FREE, TABLES, is_foreign, shown
from orchestrator.tasks.plain_text import as_plain_text
from orchestrator.tasks.sizes import read_task_toml
from sandboxes.base import File
from sandboxes.text_files import text_of

_SETTINGS: Final = "task.toml"


def unknown_moved(bundle: Bundle) -> tuple[Bundle, str]:
    """The bundle with these keys below `[metadata]`, and a sentence that names them, empty without any. A key of an inner table or of a step stays,
    and one that may be meant as a key of the format, or whose place is taken. ValueError for settings that cannot be read or written again."""
    if _SETTINGS not in bundle.files:
        return bundle, ""
    file = as_plain_text({_SETTINGS: bundle.files[_SETTINGS]})[_SETTINGS]
    text = text_of(file.data, _SETTINGS)
    tables = read_task_toml(text)
    keys = _unknown(tables)
    if not keys:
        return bundle, ""
    names = ", ".join(shown(".".join(key), table=isinstance(_value(tables, key), dict)) for key in keys)
    document = tomlkit.parse(text)
    try:
        for each in (tables, document):
            _move(each, keys)
        written = tomlkit.dumps(document)
    except tomlkit.exceptions.TOMLKitError:
        written = ""
    if tomllib.loads(written) != tables:
        raise ValueError(f"{_SETTINGS}: {names} cannot be moved by a program: move them below [{FREE}]")
    moved = File(written.encode(), file.mode)
    return (
        replace(bundle, files={**bundle.files, _SETTINGS: moved}),
        f"moved below [{FREE}], where they have no effect: {names}",
    )


def _unknown(tables: MutableMapping[str, Any]) -> list[tuple[str, ...]]:
    """The keys to move, each by the names of its table, if it is in one, and its own."""
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
        elif isinstance(free, dict) and name not in free and is_foreign("", name, value):
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
