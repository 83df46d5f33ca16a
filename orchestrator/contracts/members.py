"""Reading values of closed sets: members of enums in messages, and texts in which older senders write "" for a missing value."""

import re
import typing
from enum import Enum
from typing import Any, TypeVar

import msgspec

from orchestrator.contracts.quote import cut

S = TypeVar("S", bound=msgspec.Struct)

_NO_MEMBER = re.compile(r"Invalid enum value (?P<value>.*) - at `\$\.(?P<path>[^`]+)`", re.DOTALL)
_TOO_LONG = re.compile(
    r"Expected `str` of length <= (?P<most>[0-9]+) - at `(?P<key>key in )?\$\.(?P<path>[^`]+)`"
)
_INDEX = re.compile(r"\[[0-9.]+\]")


def read(body: bytes, expected: type[S]) -> S:
    """Decode JSON. A text of an optional enum that is "" is read as None. Raises msgspec.MsgspecError; for a text that is not a member of its enum,
    one that lists the members; for a text that is too long, one with its limit."""
    try:
        return msgspec.json.decode(body, type=expected)
    except msgspec.ValidationError as error:
        found = _NO_MEMBER.fullmatch(str(error))
        if found is None:
            if (longer := _TOO_LONG.fullmatch(str(error))) is not None:
                text = f"a name in {longer['path']}" if longer["key"] else longer["path"]
                raise msgspec.ValidationError(
                    f"{text} has more than {int(longer['most']):,} characters"
                ) from None
            raise
        value, path = found["value"], found["path"]
        enum, optional = _enum_at(expected, path)
        if value == repr("") and optional and "." not in path:
            fields = msgspec.json.decode(body)
            del fields[path]
            return read(msgspec.json.encode(fields), expected)
        raise msgspec.ValidationError(
            f"{path} is {cut(value)}, it must be one of {', '.join(member.value for member in enum)}"
        ) from None


def _enum_at(struct: type[msgspec.Struct], path: str) -> tuple[type[Enum], bool]:
    """The enum of the field at `path`, such as `artifacts[...].kind`, and whether the field may be None."""
    name, _, below = _INDEX.sub("", path).partition(".")
    hint = next(field for field in msgspec.structs.fields(struct) if field.encode_name == name).type
    classes = list(_classes(hint))
    for each in classes:
        if below and issubclass(each, msgspec.Struct):
            return _enum_at(each, below)
        if not below and issubclass(each, Enum):
            return each, type(None) in classes
    raise AssertionError(f"{struct.__name__} has no enum at {path}")


def _classes(hint: Any) -> typing.Iterator[type[Any]]:
    """The classes that a type consists of: int and None of `list[int] | None`."""
    parts = typing.get_args(hint)
    if isinstance(hint, type) and not parts:
        yield hint
    for part in parts:
        yield from _classes(part)


def without_empty(value: msgspec.Struct, *names: str) -> None:
    """Set the fields `names` of a message to None where they are "": an older sender writes that for a missing value."""
    for name in names:
        if getattr(value, name) == "":
            msgspec.structs.force_setattr(value, name, None)
