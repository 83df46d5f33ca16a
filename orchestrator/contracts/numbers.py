"""Numbers written by people: one parser with bounds for addresses, filters and commands, and one rule for numbers in TOML."""

from typing import Any

INT2, INT4, INT8 = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""The largest values of PostgreSQL's smallint (attempts), integer (versions, batches, steps, counts) and bigint (ids)."""


def whole(text: str, *, least: int = 0, most: int = INT4) -> int:
    """Parse decimal digits. The text of its ValueError ends a sentence that begins with the purpose of the number.

    >>> whole("12"), whole("-3", least=-5)
    (12, -3)
    >>> whole("9" * 5000, most=99)
    Traceback (most recent call last):
    ValueError: must be a whole number from 0 to 99, not '9999999999999999999999999999999999999999…'
    """
    text = text.strip()
    digits = text.removeprefix("-")
    # Text longer than any bound is refused before parsing: int() takes quadratic time, and refuses 4,300 digits with a message of its own.
    readable = digits.isascii() and digits.isdigit() and len(digits.lstrip("0")) <= 19 and len(digits) <= 100
    if not readable or not least <= int(text) <= most:
        shown = repr(text) if len(text) <= 40 else f"'{text[:40]}…'"
        raise ValueError(f"must be a whole number from {least} to {most}, not {shown}")
    return int(text)


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
