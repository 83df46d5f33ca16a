"""Waits between two tries."""

import random
from itertools import islice

import pytest

from orchestrator.runtime.backoff import backoff


def _drawn(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    def uniform(low: float, high: float) -> float:
        return low + factor * (high - low)

    monkeypatch.setattr(random, "uniform", uniform)


@pytest.mark.parametrize(("factor", "times"), [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5)])
def test_waits_double_up_to_the_longest_and_vary_by_half(
    monkeypatch: pytest.MonkeyPatch, factor: float, times: float
) -> None:
    _drawn(monkeypatch, factor)
    waits = list(islice(backoff(0.1, 1.0), 6))
    assert waits == pytest.approx([times * wait for wait in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0)])


def test_the_first_wait_is_no_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    _drawn(monkeypatch, 0.5)
    assert list(islice(backoff(0.1, 0.01), 3)) == [0.01, 0.01, 0.01]


def test_waits_never_end_and_never_overflow() -> None:
    assert all(0.5 <= wait <= 1.5 for wait in islice(backoff(1.0, 1.0), 5000))


def test_two_that_begin_together_part() -> None:
    random.seed(7)
    assert list(islice(backoff(0.1, 1.0), 5)) != list(islice(backoff(0.1, 1.0), 5))
