"""Turns a row of a query into a value: each column gives the field of the same name.

Rows hold the texts of closed sets. A field whose type is an enum gets the member. A text that is not a member was written by newer code and stays
a text: it equals no member, and is shown as it is.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from enum import StrEnum
from functools import lru_cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from sqlalchemy import Row

Value = TypeVar("Value")
Member = TypeVar("Member", bound=StrEnum)


def from_row(
    cls: Callable[..., Value], row: Row[*tuple[Any, ...]], *, without: Collection[str] = (), **more: object
) -> Value:
    """A value of `cls` from a row whose columns are named like its fields. `without`: columns that are not fields; `more`: fields that are not
    columns, or whose value is not the column's. If the names differ, a query renames its columns by `AS` or `label`.

    Raises TypeError if a column is not a field, or a field without a default is not a column.
    """
    values = {name: value for name, value in row._mapping.items() if name not in without}
    return cls(**{**_with_members(cls, values), **more})


def from_wide_row(
    cls: Callable[..., Value], row: Row[*tuple[Any, ...]], *, prefix: str = "", **more: object
) -> Value:
    """As `from_row`, from a row with many columns that are not fields of the dataclass `cls`, such as a row of a whole table: they are ignored.
    `prefix`: the beginning of the names of its columns in a row of several tables.

    Raises TypeError if a field without a default is not a column.
    """
    columns = row._mapping
    wanted = _names(cls).difference(more)
    values = {name: columns[prefix + name] for name in wanted if prefix + name in columns}
    return cls(**_with_members(cls, values), **more)


def member(enum: type[Member], text: str) -> Member:
    """The member of `enum` that a column holds. A text that is not a member stays a text."""
    return cast("Member", _by_text(enum).get(text, text))


def _with_members(cls: Callable[..., object], values: dict[str, Any]) -> dict[str, Any]:
    """`values` with the members of enums in place of their texts."""
    for name, members in _members(cls).items():
        if (text := values.get(name)) is not None:
            values[name] = members.get(text, text)
    return values


@lru_cache(maxsize=256)
def _members(cls: Callable[..., object]) -> Mapping[str, Mapping[str, StrEnum]]:
    """The fields of `cls` whose type is an enum, or an enum or None: their members by text."""
    found: dict[str, Mapping[str, StrEnum]] = {}
    for name, hint in get_type_hints(cls).items():
        for each in get_args(hint) if isinstance(hint, UnionType) else (hint,):
            if isinstance(each, type) and issubclass(each, StrEnum):
                found[name] = _by_text(each)
    return found


@lru_cache(maxsize=256)
def _by_text(enum: type[Member]) -> Mapping[str, Member]:
    return {each.value: each for each in enum}


@lru_cache(maxsize=256)
def _names(cls: Callable[..., object]) -> frozenset[str]:
    """The fields that the dataclass's `__init__` takes."""
    return frozenset(field.name for field in fields(cast("Any", cls)) if field.init)
