"""How a row becomes a value."""

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Row
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData

from orchestrator.contracts.states import FailureClass, RunState
from orchestrator.pool.rows import from_row, from_wide_row, member


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A value with a default."""

    name: str
    size: int
    full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A value with members of enums."""

    state: RunState
    failure: FailureClass | None = None
    reason: str | None = None


def row(**columns: object) -> Row[Any]:
    metadata, rows = SimpleResultMetaData(list(columns)), iter([tuple(columns.values())])
    result: IteratorResult[Any] = IteratorResult(metadata, rows)
    return result.one()


def test_each_column_gives_the_field_of_its_name_in_whatever_order_they_come() -> None:
    assert from_row(Place, row(full=True, size=2, name="a")) == Place(name="a", size=2, full=True)


def test_columns_without_a_field_are_left_out_and_other_fields_are_given() -> None:
    assert from_row(Place, row(name="a", nth=7), without=("nth",), size=3) == Place(name="a", size=3)


def test_a_column_too_many_or_too_few_is_refused() -> None:
    with pytest.raises(TypeError, match="nth"):
        from_row(Place, row(name="a", size=1, nth=7))
    with pytest.raises(TypeError, match="size"):
        from_row(Place, row(name="a"))


def test_a_given_value_takes_the_place_of_the_columns() -> None:
    assert from_row(Place, row(name="a", size="3"), size=3) == Place(name="a", size=3)
    assert from_wide_row(Place, row(name="a", size="3"), size=3) == Place(name="a", size=3)


def test_other_columns_of_a_wide_row_are_ignored() -> None:
    wide = row(run_id=1, full=True, size=2, nth=7, name="a")
    assert from_wide_row(Place, wide) == Place(name="a", size=2, full=True)


def test_a_wide_row_without_a_needed_column_is_refused() -> None:
    with pytest.raises(TypeError, match="size"):
        from_wide_row(Place, row(name="a", nth=7))


@pytest.mark.parametrize("made", [from_row, from_wide_row])
def test_a_field_of_an_enum_gets_the_member_of_the_text(made: Any) -> None:
    found = made(Ended, row(state="ended", failure="timeout", reason="timeout"))
    assert found.state is RunState.ENDED and found.failure is FailureClass.TIMEOUT
    assert type(found.reason) is str
    assert made(Ended, row(state="active", failure=None)) == Ended(state=RunState.ACTIVE)


def test_a_text_of_newer_code_stays_as_it_is_and_equals_no_member() -> None:
    found = from_row(Ended, row(state="paused", failure=None))
    assert found.state == "paused" and found.state not in list(RunState)
    assert member(RunState, "paused") == "paused" and member(RunState, "ending") is RunState.ENDING
