"""Advantages on the scale of their batch."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.choices import BatchScaling
from orchestrator.rewards.batch_scale import BatchScale, batch_scale


def test_tokens_and_not_steps_are_weighed() -> None:
    scale = batch_scale([1.0, -1.0], [3, 1], BatchScaling.WHITEN)
    assert scale.shift == 0.5 and scale.divisor == pytest.approx(math.sqrt(0.75) + 1e-4)


def test_std_keeps_the_mean_and_none_keeps_everything() -> None:
    assert batch_scale([1.0, -1.0], [3, 1], BatchScaling.STD) == BatchScale(0.0, math.sqrt(0.75) + 1e-4)
    assert batch_scale([1.0, -1.0], [3, 1], BatchScaling.NONE) == BatchScale()


@pytest.mark.parametrize("how", [BatchScaling.STD, BatchScaling.WHITEN])
def test_a_batch_without_spread_is_not_blown_up(how: BatchScaling) -> None:
    assert batch_scale([0.4, 0.4], [3, 1], how).divisor == 1.0
    assert batch_scale([], [], how) == batch_scale([1.0], [0], how) == BatchScale()


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 50)), min_size=2, max_size=20).filter(
        lambda steps: max(a for a, _ in steps) - min(a for a, _ in steps) > 0.1
    )
)
def test_a_whitened_batch_has_mean_zero_and_spread_just_under_one(steps: list[tuple[float, int]]) -> None:
    advantages, tokens = [a for a, _ in steps], [n for _, n in steps]
    scale = batch_scale(advantages, tokens, BatchScaling.WHITEN)
    white = [(a - scale.shift) / scale.divisor for a in advantages]
    mean = sum(a * n for a, n in zip(white, tokens, strict=True)) / sum(tokens)
    spread = math.sqrt(sum(n * a * a for a, n in zip(white, tokens, strict=True)) / sum(tokens))
    was = statistics.pstdev([a for a, n in steps for _ in range(n)])
    assert abs(mean) < 1e-9 and spread == pytest.approx(was / (was + 1e-4)) and spread < 1
