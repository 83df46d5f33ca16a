"""Arguments of the public API, checked before a query or a message gets them. Each refusal is an ArgumentError that begins with the argument's
name."""

import inspect
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.contracts.errors import ArgumentError
from orchestrator.contracts.numbers import INT8
from orchestrator.contracts.quote import quoted
from orchestrator.pool.sanitize import clean

T = TypeVar("T")


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
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value) or value < 0:
        raise ArgumentError(name, f"must be a number of seconds from 0, not {quoted(value)}")
    return float(value)


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
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ArgumentError(name, f"must be a list or another iterable, not {quoted(values)}")
    return tuple(check(name, value) for value in values)


def place(name: str, value: Any) -> Path:
    """A path. An empty one would mean the working directory."""
    if not isinstance(value, str | os.PathLike) or value == "":
        raise ArgumentError(name, f"must be a path, not {quoted(value)}")
    return Path(value)


def callback(name: str, value: Any) -> Any:
    """A function that is called without being awaited: a coroutine of it would never run."""
    if not callable(value):
        raise ArgumentError(name, f"must be a function, not {quoted(value)}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise ArgumentError(name, "must be an ordinary function: an async one would never run")
    return value
