"""The speed bonus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.states import SpeedBase
from orchestrator.rewards.speed import MIN_S, Speed, at_least_shortest, h, speed_bonuses


def test_a_time_is_at_least_the_shortest_that_a_clock_measures() -> None:
    assert at_least_shortest(12.0) == 12.0
    assert at_least_shortest(0.0) == MIN_S


def test_the_tasks_reference_comes_before_the_siblings() -> None:
    assert speed_bonuses([1, 1], [5, 20], 20) == [
        Speed(agent_s=5, base_s=20, base=SpeedBase.REFERENCE, bonus=0.8),
        Speed(agent_s=20, base_s=20, base=SpeedBase.REFERENCE, bonus=0.5),
    ]


def test_without_a_reference_the_base_is_the_median_of_the_successful_siblings() -> None:
    speeds = speed_bonuses([1, 0, 0.5, 1, 1], [30, 1, 10, 20, 60])
    assert speeds[2].bonus == pytest.approx(0.5 * h(10 / 30)), "half the work earns half the bonus"
    assert [s.base_s for s in speeds] == [20, None, 30, 30, 20]
    assert speeds[0] == Speed(agent_s=30, base_s=20, base=SpeedBase.SIBLINGS, bonus=0.4)


def test_a_lone_success_is_its_own_base() -> None:
    assert speed_bonuses([0, 1], [3, 7]) == [
        Speed(agent_s=3),
        Speed(agent_s=7, base_s=7, base=SpeedBase.ITSELF, bonus=0.5),
    ]


def test_failure_is_never_paid_for_speed() -> None:
    assert [s.bonus for s in speed_bonuses([0, 0], [0.1, 0.1], 100)] == [0, 0]


@given(st.floats(0, 1e9), st.floats(1e-6, 1e9))
def test_h_falls_from_one_towards_zero(x: float, more: float) -> None:
    assert h(0) == 1 and 0 < h(x) <= 1 and h(x + more) <= h(x)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1e6)), min_size=1, max_size=8),
    st.none() | st.floats(0.1, 1e4),
)
def test_bonuses_lie_between_zero_and_one_even_for_times_of_zero(
    members: list[tuple[float, float]], reference_s: float | None
) -> None:
    for (performance, _), speed in zip(
        members, speed_bonuses([m[0] for m in members], [m[1] for m in members], reference_s), strict=True
    ):
        assert (0 < speed.bonus <= performance) if performance > 0 else speed.bonus == 0


def test_a_reference_of_zero_seconds_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        speed_bonuses([1], [1], 0)
