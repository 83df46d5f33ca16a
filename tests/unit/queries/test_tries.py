"""The worth of several tries of one task."""

import random
from collections.abc import Sequence

import pytest

from orchestrator.queries.evaluations import wilson
from orchestrator.queries.tries import Tallies, spread


def tallies(groups: Sequence[Sequence[int]]) -> Tallies:
    """Of groups of tries, 1 for a success."""
    counts = [(sum(group), len(group)) for group in groups]
    return Tallies(
        groups=len(groups),
        n=sum(n for _, n in counts),
        successes=sum(s for s, _ in counts),
        squares=sum(s * s for s, _ in counts),
        products=sum(s * n for s, n in counts),
        sizes=sum(n * n for _, n in counts),
    )


@pytest.mark.parametrize("solved", [0, 1, 18, 25])
def test_identical_tries_are_worth_one_try_of_each_task(solved: int) -> None:
    found = tallies([[int(task < solved)] * 8 for task in range(25)])
    assert found.effective() == pytest.approx(25)
    assert wilson(found.successes, found.n, found.effective()) == pytest.approx(wilson(solved, 25))


@pytest.mark.parametrize("solved", [0, 1, 18, 25])
def test_one_try_of_each_task_has_exactly_the_interval_of_their_number(solved: int) -> None:
    found = tallies([[int(task < solved)] for task in range(25)])
    assert wilson(found.successes, found.n, found.effective()) == wilson(solved, 25)


def test_independent_tries_are_worth_about_their_number_and_never_more() -> None:
    draw = random.Random(0)
    worths = [
        tallies([[int(draw.random() < 0.6) for _ in range(8)] for _ in range(200)]).effective()
        for _ in range(20)
    ]
    assert 1400 < sum(worths) / len(worths) <= max(worths) <= 1600


def test_the_worth_lies_between_the_tasks_and_the_tries_for_any_sizes() -> None:
    assert tallies([[1, 0, 1, 0]]).effective() == 4, "the tries of the only task"
    draw = random.Random(1)
    for _ in range(300):
        groups = [[draw.randint(0, 1) for _ in range(draw.randint(1, 9))] for _ in range(draw.randint(1, 6))]
        assert len(groups) <= tallies(groups).effective() <= sum(map(len, groups))


def test_the_spread_is_that_of_groups_or_where_that_is_more_of_values() -> None:
    assert spread([(1, 1.0), (1, 1.0), (2, 0.0), (2, 0.0)], 0.5) == 2.0
    assert spread([(1, 1.0), (1, 0.0), (2, 1.0), (2, 0.0)], 0.5) == 1.0
