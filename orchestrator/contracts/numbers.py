"""Numbers written by people: one parser with bounds for addresses, filters, variables and commands, and one rule for numbers in TOML.

Python's own readers accept what people do not mean: `1_0`, ` 5 `, `+5`, digits of other scripts, `nan`, and `1e400` as infinity.
"""

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

INT2, INT4, INT8 = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""The largest values of PostgreSQL's smallint (attempts), integer (versions, batches, steps, counts) and bigint (ids)."""
T = TypeVar("T", int, float)
_REAL = re.compile(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_LENGTH = 100  # characters


def whole(text: str, *, least: int = 0, most: int = INT4) -> int:
    """Parse decimal digits, without spaces. The text of its ValueError ends a sentence that begins with the purpose of the number.

    >>> whole("12"), whole("-3", least=-5)
    (12, -3)
    >>> whole("9" * 5000, most=99)
    Traceback (most recent call last):
    ValueError: must be a whole number from 0 to 99, not '9999999999999999999999999999999999999999…'
    """
    digits = text.removeprefix("-")
    # Text longer than any bound is refused before parsing: int() takes quadratic time, and refuses 4,300 digits with a message of its own.
    readable = (
        digits.isascii() and digits.isdigit() and len(digits.lstrip("0")) <= 19 and len(digits) <= _MAX_LENGTH
    )
    if not readable or not least <= int(text) <= most:
        raise ValueError(f"must be a whole number from {least} to {most}, not {_shown(text)}")
    return int(text)


def real(text: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Parse a finite decimal number. The text of its ValueError is as that of `whole`.

    >>> real("0.5"), real("-1e-3"), real("2", least=0)
    (0.5, -0.001, 2.0)
    >>> real("1e400", least=0)
    Traceback (most recent call last):
    ValueError: must be a number from 0, such as 0.5, not '1e400'
    """
    found = float(text) if len(text) <= _MAX_LENGTH and _REAL.fullmatch(text) else math.nan
    if not math.isfinite(found) or not least <= found <= most:
        raise ValueError(f"must be a number{_range(least, most)}, not {_shown(text)}")
    return found


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether a value of JSON, TOML or YAML is a finite number: no flag, and no integer that is too large for a float.

    >>> is_finite(2), is_finite(0.5), is_finite(True), is_finite(float("nan")), is_finite(10**400)
    (True, True, False, False, False)
    """
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def option(read: Callable[..., T], *, least: float, most: float) -> Callable[[str], T]:
    """`whole` or `real` with its bounds, as the `type` of an argument of argparse, which names the option.

    >>> option(whole, least=0, most=9)("+5")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: must be a whole number from 0 to 9, not '+5'
    """

    def parse(text: str) -> T:
        try:
            return read(text, least=least, most=most)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _range(least: float, most: float) -> str:
    if math.isfinite(least) and math.isfinite(most):
        return f" from {least:g} to {most:g}"
    return f" from {least:g}, such as 0.5" if math.isfinite(least) else ", such as 0.5"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"'{text[:40]}…'"


def as_written(schema: Any) -> None:
    """Make numbers and flags of a schema strict: they are taken as written. Lists still stand for tuples, because TOML has only lists."""
    if isinstance(schema, dict):
        if schema.get("type") in ("int", "float", "bool"):
            schema["strict"] = True
        for inner in schema.values():
            as_written(inner)
    elif isinstance(schema, list):
        for inner in schema:
            as_written(inner)
