"""Text in CSV that a spreadsheet would run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.csv_cells import bare, guarded

RUN = [
    "=1+1", "+1+1", "-1+1", "@SUM(A1)", "=cmd|' /C calc'!A0", "\t=1", "\r=1", "\n=1", " =1", "\u200b=1", "\uff1dA1", "-", "- item", "--flag",
    "+49 30 123", "-1-1", "1\n".replace("1", "\r"), "=", "@user", "-0x10", "-1_000",
]  # fmt: skip
NUMBERS = ["-1", "+1", "-1.5", "-.5", "-1e-07", "1e300", "-inf", "inf", "nan", "0", "-0.0", "7.", "-1E+3"]


@pytest.mark.parametrize("cell", RUN)
def test_a_cell_that_a_spreadsheet_would_run_is_text(cell: str) -> None:
    assert guarded(cell) == f"'{cell}"


@pytest.mark.parametrize(
    "cell", [*NUMBERS, "", "a=b", "1-2", "2026-11-28 10:00:00.000", "[-1, 2]", "a\tb", "'tis"]
)
def test_numbers_and_other_text_stay(cell: str) -> None:
    assert guarded(cell) == cell


@given(st.text(alphabet=st.sampled_from("'=+-@\t\r\n 1.e\u200b\uff1da"), max_size=6) | st.text(max_size=20))
def test_every_cell_can_be_read_back_and_no_guarded_one_begins_a_formula(cell: str) -> None:
    found = guarded(cell)
    assert bare(found) == cell
    assert found[:1] not in set("=+-@\t\r") or not math.isnan(float(found)) or found.lower().endswith("nan")


@given(st.floats() | st.integers())
def test_numbers_stay_numbers(number: float) -> None:
    assert guarded(repr(number)) == repr(number)
