"""Rows of output: boxes and colours on a terminal, plain aligned columns in a file or a pipe."""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.cli.terminal import cell, plain


def looked_at() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def shown(value: Any) -> str:
    """A cell: arrays and JSON compact, bytes as hex, times to the millisecond, numbers to 6 digits.

    >>> shown(-0.0)
    '0'
    >>> shown(0.123456789), shown(None), shown(b"\\xab"), shown([1, "ä"]), shown(Decimal("12345678"))
    ('0.123457', '', 'ab', '[1, "ä"]', '12345678')
    """
    match value:
        case None:
            return ""
        case Decimal() if value == value.to_integral_value() and value.is_finite():
            return str(int(value))
        case float() | Decimal():
            return f"{value or 0:.6g}"  # no sign before zero
        case bytes():
            return value.hex()
        case datetime():
            return endless(value) or value.isoformat(" ", "milliseconds")
        case dict() | list():
            return json.dumps(finite(value), default=as_json, ensure_ascii=False)
        case _:
            return ranged(value) or str(value)


def counted(n: int, word: str) -> str:
    """
    >>> counted(1, "part"), counted(0, "part")
    ('1 part', '0 parts')
    """
    return f"{n} {word}{'s' * (n != 1)}"


def as_json(value: Any) -> Any:
    """For values that `json.dumps` does not know: numbers stay numbers, times are ISO 8601, intervals seconds, bytes hex, all others their text."""
    match value:
        case Decimal():
            return (
                int(value)
                if value.is_finite() and value == value.to_integral_value()
                else finite(float(value))
            )
        case datetime() | date():
            return endless(value) or value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case _:
            return ranged(value, exact=True) or str(value)


def endless(value: date) -> str | None:
    """PostgreSQL's text of an infinite time, which the driver gives as the last or first one of Python.

    >>> endless(datetime.max), endless(datetime.min), endless(date.max)
    ('infinity', '-infinity', None)
    """
    if not isinstance(value, datetime):
        return None
    plain_time = value.replace(tzinfo=None)
    return {datetime.max: "infinity", datetime.min: "-infinity"}.get(plain_time)


def ranged(value: Any, *, exact: bool = False) -> str | None:
    """PostgreSQL's text of a range, its ends as `shown`, or with all their digits; None for any other value."""
    if not hasattr(value, "lower_inc"):
        return None
    if value.isempty:
        return "empty"
    text = _all_digits if exact else shown
    low, high = ("" if end is None else _end(text(end)) for end in (value.lower, value.upper))
    return f"{'[' if value.lower_inc else '('}{low},{high}{']' if value.upper_inc else ')'}"


def _all_digits(end: Any) -> str:
    return endless(end) or end.isoformat() if isinstance(end, date) else str(end)


def _end(text: str) -> str:
    """The end of a range, in quotes where it would be read as something else.

    >>> _end("a"), _end("a,b")
    ('a', '"a,b"')
    """
    if text and not set(text) & set(',[]()"\\'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become text, as in PostgreSQL's to_json, also inside lists and dicts."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case list() | tuple():
            return [finite(each) for each in value]
        case dict():
            return {key: finite(each) for key, each in value.items()}
        case _:
            return value


def line(row: dict[str, Any]) -> str:
    """One row as a line of JSON, plain ASCII: it contains no control characters."""
    return json.dumps(finite(row), default=as_json, allow_nan=False)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, upright: bool = True) -> None:
    """A table. If a terminal is too narrow for its columns, each row is printed vertically, as psql does with \\x."""
    cells = [[shown(value) for value in row] for row in rows]
    if not looked_at():
        print_plain(columns, cells)
        return
    console = Console(markup=False, emoji=False, highlight=False)
    if upright and 1 + sum(len(column) + 3 for column in columns) > console.width:
        for row in cells:
            vertical = Table("column", "value")
            for column, value in zip(columns, row, strict=True):
                vertical.add_row(cell(column), cell(value))
            console.print(vertical)
        return
    table = Table(*map(plain, columns))
    for row in cells:
        table.add_row(*map(cell, row))
    console.print(table)


def print_table(table: Table, *, markup: bool = False) -> None:
    """A table on a terminal; elsewhere only its title and its cells. `markup`: its cells use rich's."""
    if looked_at():
        Console(markup=markup, emoji=False, highlight=False).print(table)
        return
    read = Text.from_markup if markup else Text

    def bare(found: object) -> str:
        return found.plain if isinstance(found, Text) else read(str(found)).plain

    if table.title is not None:
        print(plain(bare(table.title)))
    columns = [[bare(each) for each in column.cells] for column in table.columns]
    print_plain([bare(column.header) for column in table.columns], list(zip(*columns, strict=True)))


def print_plain(columns: Sequence[str], cells: Iterable[Sequence[str]]) -> None:
    """Columns of one width, two spaces apart, one line per row."""
    lines = [
        [plain(each).replace("\n", "\\n").replace("\t", "\\t") for each in row] for row in (columns, *cells)
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for row in lines:
        print("  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)).rstrip())
