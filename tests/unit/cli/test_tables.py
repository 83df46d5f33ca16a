"""Tables: boxes for people, aligned columns for programs, nothing that moves a cursor for either."""

import json
from datetime import datetime
from decimal import Decimal

import pytest
from asyncpg import Range
from rich.table import Table
from rich.text import Text

from orchestrator.cli import tables


@pytest.fixture
def table() -> Table:
    table = Table("name", "", title="title")
    table.add_row("[red]a[/red]", "y" * 300)
    table.add_row(Text("b\x1b[2J"), "1")
    return table


def test_a_table_is_plain_columns_where_no_terminal_looks(
    capsys: pytest.CaptureFixture[str], table: Table
) -> None:
    tables.print_table(table, markup=True)
    assert capsys.readouterr().out == f"title\nname\na         {'y' * 300}\nb\\x1b[2J  1\n"


def test_a_table_has_its_box_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    monkeypatch.setattr(tables, "looked_at", lambda: True)
    tables.print_table(table, markup=True)
    assert "\u2502 a" in capsys.readouterr().out


def test_infinite_times_and_ranges_read_as_in_postgresql() -> None:
    day = datetime(2026, 1, 31)
    row = {
        "a": datetime.max,
        "b": datetime.min,
        "c": Range(1, 2),
        "d": Range(empty=True),
        "e": Range(day, None),
    }
    expected = ["infinity", "-infinity", "[1,2)", "empty", "[2026-01-31 00:00:00.000,)"]
    assert [tables.shown(value) for value in row.values()] == expected
    in_json = [*expected[:-1], "[2026-01-31T00:00:00,)"]
    assert list(json.loads(tables.line(row)).values()) == in_json


def test_a_line_is_json_for_every_reader_also_where_numbers_are_not_finite() -> None:
    row = {
        "a": [1.5, float("nan"), [float("-inf")]],
        "b": {"x": float("inf"), "y": [None, Decimal("NaN")]},
        "c": float("nan"),
        "d": Decimal("-Infinity"),
        "e": (1, True),
    }
    assert json.loads(tables.line(row), parse_constant=pytest.fail) == {
        "a": [1.5, "NaN", ["-Infinity"]],
        "b": {"x": "Infinity", "y": [None, "NaN"]},
        "c": "NaN",
        "d": "-Infinity",
        "e": [1, True],
    }
    assert json.loads(tables.shown(row["b"]), parse_constant=pytest.fail) == {
        "x": "Infinity",
        "y": [None, "NaN"],
    }


def test_json_keeps_every_digit_of_a_range_and_quotes_its_ends() -> None:
    row = {
        "a": Range(datetime(2026, 1, 1, 1, 1, 1, 123456), None),
        "b": Range(Decimal("0.1234567"), Decimal("1234567.5")),
        "c": Range("a,b", "c"),
    }
    expected = ["[2026-01-01T01:01:01.123456,)", "[0.1234567,1234567.5)", '["a,b",c)']
    assert list(json.loads(tables.line(row)).values()) == expected
    assert [tables.shown(value) for value in row.values()] == [
        "[2026-01-01 01:01:01.123,)",
        "[0.123457,1.23457e+6)",
        '["a,b",c)',
    ]


def test_markup_that_was_not_meant_is_text(capsys: pytest.CaptureFixture[str], table: Table) -> None:
    tables.print_table(table)
    assert "[red]a[/red]" in capsys.readouterr().out


def test_lines_of_a_cell_stay_in_their_row(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_rows(["a", "b"], [["x\ny\tz", None], [1.5, {"k": "\u202e"}]])
    assert capsys.readouterr().out == 'a        b\nx\\ny\\tz\n1.5      {"k": "\\u202e"}\n'
