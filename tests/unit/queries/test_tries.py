"""The worth of several tries of one task."""

import random
from collections.abc import Sequence
from itertools import pairwise

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
def test_one_try_of_each_task_has_the_interval_of_their_number(solved: int) -> None:
    found = tallies([[int(task < solved)] for task in range(25)])
    assert wilson(found.successes, found.n, found.effective()) == pytest.approx(wilson(solved, 25))


def test_independent_tries_are_worth_about_their_number_and_never_more() -> None:
    draw = random.Random(0)
    worths = [
        tallies([[int(draw.random() < 0.6) for _ in range(8)] for _ in range(200)]).effective()
        for _ in range(20)
    ]
    assert 1400 < sum(worths) / len(worths) <= max(worths) <= 1600


@pytest.mark.parametrize("tries", [[1, 0], [1, 0, 1, 0], [1] * 8, [0] * 8])
def test_the_tries_of_the_only_task_count_in_full(tries: list[int]) -> None:
    assert tallies([tries]).effective() == len(tries)


def test_the_worth_lies_between_identical_tries_and_their_number_for_any_sizes() -> None:
    draw = random.Random(1)
    for _ in range(300):
        groups = [[draw.randint(0, 1) for _ in range(draw.randint(1, 9))] for _ in range(draw.randint(1, 6))]
        n, sizes = sum(map(len, groups)), sum(len(group) ** 2 for group in groups)
        assert n * n / sizes - 1e-9 <= tallies(groups).effective() <= n


@pytest.mark.parametrize("successes", [0, 1])
def test_identical_tries_of_unequal_numbers_count_by_the_sizes_of_their_groups(successes: int) -> None:
    found = tallies([[successes] * 8, *[[successes]] * 4])
    assert found.effective() == pytest.approx(12**2 / 68)


def test_one_success_more_changes_an_interval_little_at_its_ends() -> None:
    ends = []
    for failures in (2, 1, 0):
        found = tallies([[1] * 8] * (25 - failures) + [[1] * 7 + [0]] * failures)
        ends.append(wilson(found.successes, found.n, found.effective())[0])
    assert all(abs(one - other) < 0.06 for one, other in pairwise(ends)), ends


def test_nine_of_ten_intervals_of_few_tasks_hold_the_true_share() -> None:
    draw, held = random.Random(2), 0
    for _ in range(400):
        shares = [draw.betavariate(1, 1) for _ in range(10)]
        found = tallies([[int(draw.random() < share) for _ in range(8)] for share in shares])
        low, high = wilson(found.successes, found.n, found.effective())
        held += low <= 0.5 <= high
    assert held / 400 > 0.93


def test_the_spread_is_that_of_groups_or_where_that_is_more_of_values() -> None:
    assert spread([(1, 1.0), (1, 1.0), (2, 0.0), (2, 0.0)], 0.5) == 2.0
    assert spread([(1, 1.0), (1, 0.0), (2, 1.0), (2, 0.0)], 0.5) == 1.0
    assert spread([(1, 1.0), (1, 1.0), (2, 0.0), (2, 0.0)], 0.5, unbiased=True) == 4.0
    assert spread([(1, 1.0), (1, 0.0), (2, 1.0), (2, 0.0)], 0.5, unbiased=True) == 4 / 3
