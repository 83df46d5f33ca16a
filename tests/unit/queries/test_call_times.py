"""The times of calls: as late as their records, tools and later calls allow."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.queries.call_times import spans


@dataclass(frozen=True, kw_only=True)
class Call:
    idx: int
    at: datetime
    t_queue: float | None
    t_gen: float | None
    t_gap: float | None
    ended: datetime | None = None


def call(
    idx: int, at: float, queue: float | None = 0.0, gen: float | None = 1.0, gap: float | None = 0.0
) -> Call:
    return Call(idx=idx, at=datetime.fromtimestamp(at, UTC), t_queue=queue, t_gen=gen, t_gap=gap)


def test_a_call_ends_where_the_next_ones_gap_begins() -> None:
    first, second = spans([call(0, 100.0), call(1, 100.0, queue=0.5, gen=2.0, gap=3.0)], {})
    assert (second.start, second.generation, second.end) == (97.5, 98.0, 100.0)
    assert (first.start, first.end) == (93.5, 94.5)


def test_a_call_ends_before_its_tool_begins_and_an_early_record_is_believed() -> None:
    (alone,) = spans([call(4, 100.0)], {4: 99.0})
    assert (alone.start, alone.end) == (98.0, 99.0)
    first, _ = spans([call(0, 50.0), call(1, 100.0)], {})
    assert first.end == 50.0


def test_a_call_that_says_when_it_ended_lies_there_however_many_overlap() -> None:
    calls = [
        Call(
            idx=idx,
            at=datetime.fromtimestamp(130.0, UTC),
            t_queue=queue,
            t_gen=1.0,
            t_gap=0.0,
            ended=datetime.fromtimestamp(ended, UTC),
        )
        for idx, (queue, ended) in enumerate([(0.0, 101.0), (1.0, 102.0), (2.0, 103.0)])
    ]
    found = spans(calls, {1: 50.0})
    assert [(span.start, span.generation, span.end) for span in found] == [
        (100.0, 100.0, 101.0),
        (100.0, 101.0, 102.0),
        (100.0, 102.0, 103.0),
    ]
    assert all(span.measured for span in found)
    older, newer = spans([call(0, 130.0), calls[0]], {})
    assert (older.measured, older.end) == (False, newer.start)


def test_what_was_not_measured_takes_no_time() -> None:
    (alone,) = spans([call(0, 10.0, None, None, None)], {})
    assert alone.start == alone.end == 10.0


seconds = st.floats(0, 100) | st.none()


@given(st.lists(st.tuples(st.floats(1000, 2000), seconds, seconds, seconds), max_size=6))
def test_spans_are_ordered_and_none_ends_after_its_record(
    times: list[tuple[float, float, float, float]],
) -> None:
    calls = [call(i, *each) for i, each in enumerate(times)]
    found = spans(calls, {})
    assert len(found) == len(calls)
    for each, span in zip(calls, found, strict=True):
        assert span.start <= span.generation <= span.end <= each.at.timestamp()
    for each, span, following in zip(calls[1:], found, found[1:], strict=False):
        assert span.end + (each.t_gap or 0.0) == pytest.approx(following.start) or span.end <= following.start
