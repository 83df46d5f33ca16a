"""Arguments of the public API, checked before a query or a message gets them. Each refusal is an ArgumentError that begins with the argument's
name."""

import errno
import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.contracts.errors import ArgumentError
from orchestrator.contracts.numbers import INT8
from orchestrator.contracts.quote import quoted
from orchestrator.pool.sanitize import clean
from orchestrator.settings.storable import unstorable

T = TypeVar("T")
MAX_DEPTH = 32
"""Lists and tables within one another in a value of the configuration."""


def number(name: str, value: Any, *, least: int = 0, most: int = INT8) -> int:
    """A whole number, also one of numpy.

    >>> number("limit", True)
    Traceback (most recent call last):
    orchestrator.contracts.errors.ArgumentError: limit must be a whole number from 0 to 9223372036854775807, not True
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or not least <= found <= most:
        raise ArgumentError(name, f"must be a whole number from {least} to {most}, not {quoted(value)}")
    return found


def seconds(name: str, value: Any) -> float:
    """A duration; infinity is one without an end.

    >>> seconds("timeout_s", float("nan"))
    Traceback (most recent call last):
    orchestrator.contracts.errors.ArgumentError: timeout_s must be a number of seconds from 0, not nan
    """
    found = _real(value)
    if found is None or found < 0:
        raise ArgumentError(name, f"must be a number of seconds from 0, not {quoted(value)}")
    return found


def amount(name: str, value: Any) -> float:
    """A number from 0 that is not infinite."""
    found = _real(value)
    if found is None or not 0 <= found < math.inf:
        raise ArgumentError(name, f"must be a number from 0, not {quoted(value)}")
    return found


def _real(value: Any) -> float | None:
    """A real number that a float holds; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return None if math.isnan(found) else found


def words(name: str, value: Any) -> str:
    """A text that PostgreSQL can compare."""
    if not isinstance(value, str):
        raise ArgumentError(name, f"must be a string, not {quoted(value)}")
    if clean(value) != value:
        raise ArgumentError(name, f"{quoted(value)} holds characters that PostgreSQL cannot store")
    return value


def flag(name: str, value: Any) -> bool:
    """True or False: the text "no" would count as true."""
    if not isinstance(value, bool):
        raise ArgumentError(name, f"must be True or False, not {quoted(value)}")
    return value


def each_of(name: str, values: Any, check: Callable[[str, Any], T]) -> tuple[T, ...]:
    """Every value of an iterable that is not one text."""
    try:
        each = None if isinstance(values, str | bytes) else iter(values)
    except TypeError:
        each = None
    if each is None:
        raise ArgumentError(name, f"must be a list or another iterable, not {quoted(values)}")
    return tuple(check(name, value) for value in each)


def place(name: str, value: Any) -> Path:
    """A path. An empty one would mean the working directory."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(path, str) or path == "":
        raise ArgumentError(name, f"must be a path, not {quoted(value)}")
    try:
        os.lstat(path)
    except ValueError:
        raise ArgumentError(name, f"{quoted(path)} holds characters that a path cannot have") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ArgumentError(name, f"{quoted(path)} is longer than a path may be") from None
    return Path(path)


def sections(name: str, value: Any) -> dict[str, dict[str, Any]]:
    """Sections of penstock.toml, each with its keys, as values of TOML.

    >>> sections("settings", {"queue.group_size": 4})
    Traceback (most recent call last):
    orchestrator.contracts.errors.ArgumentError: settings must be sections with keys, as {"queue": {"group_size": 4}}, not {'queue.group_size': 4}
    """
    whole = isinstance(value, Mapping) and all(isinstance(keys, Mapping) for keys in value.values())
    if not whole or not all(isinstance(section, str) for section in value):
        raise ArgumentError(
            name, f'must be sections with keys, as {{"queue": {{"group_size": 4}}}}, not {quoted(value)}'
        )
    found = {section: _table(name, section, keys, 1) for section, keys in value.items()}
    if (fault := unstorable(found)) is not None:
        raise ArgumentError(name, f"cannot be used: {fault}")
    return found


def _table(name: str, at: str, keys: Mapping[Any, Any], deep: int) -> dict[str, Any]:
    wrong = next((key for key in keys if not isinstance(key, str)), None)
    if wrong is not None:
        raise ArgumentError(name, f"{quoted(at)} has the key {quoted(wrong)}: a key is a string")
    return {key: _toml(name, f"{at}.{key}", value, deep) for key, value in keys.items()}


def _toml(name: str, at: str, value: Any, deep: int) -> Any:
    """`value` in the types that TOML and the configuration have."""
    if deep > MAX_DEPTH:
        raise ArgumentError(name, f"{quoted(at)} is nested too deeply")
    match value:
        case bool():
            return value
        case int() if -INT8 <= value <= INT8:
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case Mapping():
            return _table(name, at, value, deep + 1)
        case list() | tuple():
            return [_toml(name, at, each, deep + 1) for each in value]
    raise ArgumentError(
        name,
        f"{quoted(at)} cannot be {quoted(value)}: write a string, a number, True or False, a list or a mapping",
    )


def callback(name: str, value: Any, *, takes: int) -> Any:
    """A function of `takes` arguments that is called without being awaited: a coroutine of it would never run."""
    if not callable(value):
        raise ArgumentError(name, f"must be a function, not {quoted(value)}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise ArgumentError(name, "must be an ordinary function: an async one would never run")
    try:
        parameters = inspect.signature(value)
    except ValueError:  # a function of C may have none
        return value
    try:
        parameters.bind(*range(takes))
    except TypeError:
        wanted = "an argument" if takes == 1 else f"{takes} arguments"
        raise ArgumentError(name, f"must be a function that takes {wanted}, not {quoted(value)}") from None
    return value
