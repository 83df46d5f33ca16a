"""Stages follow one another by committed batches alone."""

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.contracts.errors import MessageError
from orchestrator.roles.intake import check_stage
from orchestrator.settings.curriculum import NextStage, StageSection

COURSE: dict[str, Any] = {
    "name": "warm",
    "domains": {"coding": 1.0},
    "difficulties": ["easy"],
    "limits": {"coding": {"max_turns": 2}},
    "end_batches": 3,
    "then": [
        {"name": "middle", "domains": {"coding": 1.0, "general": 1.0}, "end_batches": 2},
        {
            "name": "last",
            "max_context": 9000,
            "limits": {"agent": {"max_context": 100}},
            "end_train_steps": 50,
        },
    ],
}


def course(**changes: Any) -> StageSection:
    return StageSection.model_validate({**COURSE, **changes})


def test_a_stage_is_over_with_its_own_number_of_batches() -> None:
    found = [(course().at(batches)[0].name, course().at(batches)[1]) for batches in range(7)]
    assert found == [*[("warm", 0)] * 3, *[("middle", 3)] * 2, *[("last", 5)] * 2]


def test_a_single_stage_never_gives_way_to_another() -> None:
    alone = StageSection(end_batches=3)
    assert alone.at(0) == alone.at(99) == (alone, 0)
    assert alone.reached(batches=3, train_steps=0, seconds=0) == "3 batches are committed"


def test_only_the_last_stage_ends_the_run_and_counts_its_own_batches() -> None:
    assert course().reached(batches=4, train_steps=99, seconds=1e9) is None
    assert course().reached(batches=5, train_steps=49, seconds=1e9) is None
    assert course().reached(batches=5, train_steps=50, seconds=0) == "50 train steps are done"
    by_batches = course(then=[{"name": "last", "end_batches": 2}])
    assert by_batches.reached(batches=4, train_steps=0, seconds=0) is None
    assert by_batches.reached(batches=5, train_steps=0, seconds=0) == "2 batches are committed"


def test_limits_are_the_domains_else_the_stages() -> None:
    warm, _, last = course().all
    assert (warm.turns("coding"), warm.turns("general"), warm.context("coding")) == (2, 200, 0)
    assert (last.context("agent"), last.context("coding"), last.turns("agent")) == (100, 9000, 200)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end_batches": 0}, "stage 'warm' is followed by another one: it ends by end_batches"),
        ({"end_seconds": 5}, "stage 'warm' is followed by another one: it ends by end_batches"),
        ({"then": [{"name": "warm"}]}, "stages need names of their own, not warm, warm"),
        ({"then": [{"name": "b", "then": []}]}, "Extra inputs are not permitted"),
    ],
)
def test_a_course_that_cannot_be_followed_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        course(**changes)


def test_a_task_is_accepted_if_any_stage_takes_it() -> None:
    closed = course(then=[{"name": "b", "domains": {"general": 1.0}, "difficulties": ["hard"]}])
    check_stage(closed, "coding", "easy")
    check_stage(closed, "general", "hard")
    with pytest.raises(
        MessageError, match="domain 'agent' has no share in stage 'warm' or 'b'; known: coding, general"
    ):
        check_stage(closed, "agent", "easy")
    with pytest.raises(
        MessageError, match="difficulty 'hard' of domain 'coding' trains in no stage; known: easy"
    ):
        check_stage(closed, "coding", "hard")
    with pytest.raises(MessageError, match="domain 'coding' has no share in stage 'main'; known: general"):
        check_stage(StageSection(domains={"general": 1.0, "coding": 0.0}), "coding", "easy")


def test_a_stage_without_domains_and_difficulties_takes_everything() -> None:
    assert NextStage().takes("anything", "whatever")
