"""The repeated generation is the rollout server's work, less the part of it that is stored in attempts that count."""

import json
from pathlib import Path

import pytest

from ops.lab.chaos.ledger import Ledger, calls_of
from ops.lab.chaos.regenerated import AttemptCall, Spent, spent

STORED = {"1:1": [(1, 2, 3), (4, 5)]}
KEPT = [AttemptCall("1:1", (1, 2, 3), 1.0), AttemptCall("1:1", (4, 5), 2.0)]


def test_what_is_stored_in_an_attempt_that_counts_was_generated_once() -> None:
    assert spent(KEPT, STORED) == Spent(3.0, 0.0)


@pytest.mark.parametrize(
    "lost",
    [
        AttemptCall("1:1", None, 8.0),  # cut in flight
        AttemptCall("1:1", (4, 9), 8.0),  # never stored: of an epoch whose steps were refused
        AttemptCall("1:1", (4, 5), 8.0),  # the same seed gave the same ids again
        AttemptCall("2:1", (1, 2, 3), 8.0),  # an attempt that was replaced, with its steps, or without any
    ],
)
def test_everything_else_was_generated_for_nothing(lost: AttemptCall) -> None:
    for calls in ([lost, *KEPT], [*KEPT[:1], lost, *KEPT[1:]]):
        assert spent(calls, STORED) == Spent(11.0, 8.0)


def test_of_a_step_that_a_change_of_weights_cut_in_two_both_pieces_were_worth_it() -> None:
    pieces = [AttemptCall("1:1", (1, 2), 1.0), AttemptCall("1:1", (), 50.0), AttemptCall("1:1", (3, 4), 2.0)]
    assert spent(pieces, {"1:1": [(1, 2, 3, 4)]}) == Spent(3.0, 0.0)
    assert spent(pieces, {"1:1": [(1, 2, 3)]}) == Spent(3.0, 0.0)  # the last one continued after its stop
    assert spent(pieces[:2], {"1:1": [(1, 2, 3)]}) == Spent(1.0, 1.0)  # another call made the rest of it


def test_a_whole_completion_is_taken_before_one_that_went_on() -> None:
    longer = AttemptCall("1:1", (1, 2, 3, 4), 8.0)
    assert spent([longer, *KEPT], STORED) == Spent(11.0, 8.0)
    again = [AttemptCall("1:1", (1, 2, 3, 4, 5), 8.0), *KEPT]
    assert spent(again, {"1:1": [(1, 2, 3, 4, 5)]}) == Spent(11.0, 3.0)


def test_the_ledger_keeps_calls_as_they_were(tmp_path: Path) -> None:
    calls = [AttemptCall("1:1", (1, 2), 0.25), AttemptCall("1:2", None, 1.5), AttemptCall("1:2", (), 0.125)]
    with Ledger(tmp_path) as ledger:
        for call in calls:
            ledger.called(call)
    assert list(calls_of(tmp_path)) == calls
    assert [json.loads(line) for line in (tmp_path / "generations.jsonl").read_text().splitlines()] == [
        {"of": "1:1", "ids": [1, 2]},
        {"of": "1:2", "ids": []},
    ]
