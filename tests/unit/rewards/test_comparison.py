"""Groups without signal, and groups in which only speed differs."""

from dataclasses import replace
from statistics import pstdev

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.contracts.choices import ZeroSignal
from orchestrator.contracts.marks import ParseStatus
from orchestrator.contracts.states import Silence
from orchestrator.rewards.actions import ParsedAction, RecordedStep
from orchestrator.rewards.comparison import NOISE_FACTOR, compared, sd_log
from orchestrator.rewards.composite import RolloutReward, VerifiedMember, group_rewards
from orchestrator.rewards.returns import group_advantages
from orchestrator.rewards.settings import RewardSettings

GOOD = RecordedStep(ParsedAction(content="7"))
BAD = RecordedStep(ParsedAction(content="<call", parse=ParseStatus.ILL_FORMED))
DEFAULT = RewardSettings()
BY_PERFORMANCE = replace(DEFAULT, zero_signal=ZeroSignal.PERFORMANCE)


def group(*members: tuple[float, float], bad: int | None = None) -> list[RolloutReward]:
    outcomes = [
        VerifiedMember(member=i, performance=performance, agent_s=t, steps=[BAD if i == bad else GOOD])
        for i, (performance, t) in enumerate(members)
    ]
    return group_rewards(outcomes, DEFAULT)


FAST_TO_SLOW = group(*((1.0, t) for t in (5.0, 10.0, 50.0, 500.0)))


def test_a_group_of_equal_successes_from_5_to_500_seconds_trains_once_the_noise_is_known() -> None:
    assert compared(FAST_TO_SLOW, DEFAULT).silent is Silence.NOT_MEASURED
    found = compared(FAST_TO_SLOW, DEFAULT, noise=0.3)
    assert found.silent is None and found.noise == 0.3 and found.sd_log_t == pytest.approx(2.045, abs=1e-3)
    fastest, *_, slowest = group_advantages(FAST_TO_SLOW, DEFAULT)
    assert fastest.steps[0].advantage > 0 > slowest.steps[0].advantage
    assert compared(FAST_TO_SLOW, BY_PERFORMANCE, noise=0.3).silent is Silence.EQUAL_PERFORMANCE


def test_speed_within_three_times_its_noise_is_silent_and_at_three_times_it_trains() -> None:
    sd = compared(FAST_TO_SLOW, DEFAULT).sd_log_t
    assert sd is not None
    assert compared(FAST_TO_SLOW, DEFAULT, noise=sd / NOISE_FACTOR * 1.001).silent is Silence.WITHIN_NOISE
    assert compared(FAST_TO_SLOW, DEFAULT, noise=sd / NOISE_FACTOR * 0.999).silent is None


def test_successes_that_took_the_same_time_are_silent_also_where_the_replays_did() -> None:
    alike = group((1.0, 5e-4), (1.0, 2e-4), bad=0)  # both are clamped
    assert alike[0].total != alike[1].total
    assert compared(alike, DEFAULT, noise=0.0).silent is Silence.WITHIN_NOISE


def test_failures_alone_are_silent_also_where_their_style_or_speed_differs() -> None:
    failures = group((0.0, 1.0), (0.0, 500.0), bad=0)
    assert failures[0].total != failures[1].total
    assert compared(failures, DEFAULT, noise=0.01).silent is Silence.NO_SUCCESS


def test_style_alone_trains_no_group_of_equal_successes() -> None:
    assert compared(group((1.0, 9.0), (1.0, 9.0), bad=0), DEFAULT, 0.01).silent is Silence.WITHIN_NOISE


def test_unequal_performance_trains_whatever_is_known_of_the_noise() -> None:
    for noise in (None, 0.01, 5.0):
        assert compared(group((1.0, 5.0), (0.0, 500.0)), DEFAULT, noise).silent is None


@pytest.mark.parametrize("zero_signal", list(ZeroSignal))
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9, 1.0])
def test_unequal_performance_trains_whatever_the_discount_and_the_number_of_steps(
    gamma: float, zero_signal: ZeroSignal
) -> None:
    settings = replace(DEFAULT, gamma=gamma, zero_signal=zero_signal)
    outcomes = [
        VerifiedMember(member=i, performance=performance, agent_s=9.0, steps=[GOOD] * 200)
        for i, performance in enumerate((1.0, 0.0))
    ]
    rewards = group_rewards(outcomes, settings)
    assert compared(rewards, settings).silent is None
    success, failure = group_advantages(rewards, settings)
    assert success.steps[-1].advantage > failure.steps[-1].advantage


def test_performance_that_differs_by_less_than_a_thousandth_does_not_open_the_gate() -> None:
    for better, worse in ((1.0, 0.9995), (0.500001, 0.5)):
        near = group((worse, 5.0), (better, 500.0))
        assert compared(near, DEFAULT).silent is Silence.NOT_MEASURED
        assert compared(near, BY_PERFORMANCE, noise=0.01).silent is Silence.EQUAL_PERFORMANCE
    assert compared(group((0.5, 5.0), (0.502, 500.0)), BY_PERFORMANCE).silent is None


def test_where_returns_are_divided_by_their_spread_performance_that_differs_by_less_than_speed_passes_the_gate() -> (
    None
):
    near = group((0.9, 10.0), (0.9011, 13.0), (0.9, 9.0), (0.9, 30.0))
    divided = replace(DEFAULT, advantage_std=True)
    assert compared(near, DEFAULT).silent is None, "noise moves a return by β/4 of it"
    for noise, silent in ((None, Silence.BELOW_SPEED), (5.0, Silence.BELOW_SPEED), (0.01, None)):
        assert compared(near, divided, noise).silent is silent
    assert compared(group((1.0, 5.0), (0.0, 500.0)), divided).silent is None


def test_where_returns_are_divided_by_their_spread_style_decides_no_group() -> None:
    divided = replace(DEFAULT, advantage_std=True)
    only = group(
        (0.0, 9.0), (0.0, 9.0), (0.0, 9.0), (0.0015, 9.0), bad=3
    )  # the only one that achieved anything
    assert group_advantages(only, divided)[3].steps[0].advantage < 0
    alike = group((1.0, 9.0), (1.0, 9.5), (1.0, 10.0), bad=0)
    for near in (only, alike):
        for noise in (None, 0.001):
            assert compared(near, divided, noise).silent is not None
        assert compared(near, divided, 0.001).silent is Silence.BELOW_PROCESS
    assert compared(only, DEFAULT, 0.001).silent is None
    assert compared(alike, DEFAULT, 0.001).silent is Silence.BELOW_PROCESS, "speed differs by less than style"
    for clear in (
        group((1.0, 9.0), (0.0, 9.0), bad=0),
        group(*((1.0, t) for t in (5.0, 50.0, 500.0)), bad=0),
        group((0.5, 5.0), (0.502, 50.0), (0.5, 500.0), bad=0),
        group(*[(0.0, 9.0)] * 7, (0.25, 9.0), bad=0),
        group(*[(0.0, 9.0)] * 127, (1.0, 9.0), bad=0),
    ):
        assert compared(clear, divided, 0.001).silent is None


@given(
    st.lists(st.sampled_from([0.9, 0.902, 1.0]), min_size=2, max_size=4),
    st.sampled_from([9.0, 40.0]),
    st.integers(0, 1),
    st.integers(0, 5),
    st.none() | st.floats(0, 1),
)
def test_where_returns_are_divided_no_step_has_an_advantage_beyond_what_the_members_differ_by(
    performances: list[float], time_of_first: float, bad_of_first: int, bad_of_all: int, noise: float | None
) -> None:
    settings = replace(DEFAULT, advantage_std=True)
    outcomes = [
        VerifiedMember(
            member=i,
            performance=performance,
            agent_s=9.0 if i else time_of_first,
            steps=[BAD] * (bad_of_all + (0 if i else bad_of_first)) + [GOOD],
        )
        for i, performance in enumerate(performances)
    ]
    rewards = group_rewards(outcomes, settings)
    if compared(rewards, settings, noise).silent is not None:
        return
    totals = [reward.total for reward in rewards]
    bonuses = [settings.speed_weight * r.speed.bonus for r in rewards]
    apart = sum(max(values) - min(values) for values in (performances, bonuses, totals))
    for member in group_advantages(rewards, settings):
        assert all(abs(step.advantage) <= apart / pstdev(totals) + 1e-6 for step in member.steps)


def test_style_does_not_rank_members_of_equal_performance_against_their_speed() -> None:
    def faults(*bad: int) -> list[RolloutReward]:
        return group_rewards(
            [
                VerifiedMember(member=i, performance=1.0, agent_s=seconds, steps=[BAD] * number + [GOOD] * 11)
                for i, (seconds, number) in enumerate(zip((50.0, 5.0, 48.0, 6.0), bad, strict=True))
            ],
            DEFAULT,
        )

    ranked = faults(0, 10, 0, 10)
    assert ranked[1].total < ranked[0].total, "the fast ones are paid less"
    assert compared(ranked, DEFAULT, 0.1).silent is Silence.BELOW_PROCESS
    shared = faults(
        10, 10, 10, 10
    )  # their later steps would be preferred to their earlier ones, by more than speed pays
    assert compared(shared, DEFAULT, 0.1).silent is Silence.BELOW_PROCESS
    assert compared(faults(0, 0, 0, 0), DEFAULT, 0.1).silent is None


def test_style_that_all_members_share_is_not_divided_by_a_small_spread() -> None:
    divided = replace(DEFAULT, advantage_std=True)

    def with_bad_steps(*performances: float) -> list[RolloutReward]:
        outcomes = [
            VerifiedMember(member=i, performance=performance, agent_s=9.0, steps=[BAD] * 5 + [GOOD] * 2)
            for i, performance in enumerate(performances)
        ]
        return group_rewards(outcomes, divided)

    near = with_bad_steps(0.9, 0.902)
    assert min(m.steps[-1].advantage for m in group_advantages(near, divided)) > 90, "the worse member too"
    assert compared(near, divided, 0.001).silent is Silence.BELOW_PROCESS
    assert compared(near, DEFAULT, 0.001).silent is None
    assert compared(with_bad_steps(1.0, 0.0), divided, 0.001).silent is None


def test_everything_equal_is_silent_and_so_is_a_group_without_members() -> None:
    equal = group((1.0, 9.0), (1.0, 9.0), (1.0, 9.0))
    assert compared(equal, DEFAULT, noise=0.0).silent is Silence.WITHIN_NOISE
    for settings in (DEFAULT, BY_PERFORMANCE):
        assert compared([], settings).silent is not None
        assert compared(equal, settings, noise=0.1).silent is not None


def test_without_a_weight_of_speed_equal_performance_is_silent() -> None:
    assert compared(FAST_TO_SLOW, replace(DEFAULT, speed_weight=0.0), 0.1).silent is Silence.EQUAL_PERFORMANCE


GROUPS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.1, 1e4)), min_size=2, max_size=8)


@given(GROUPS, st.floats(1e-1, 1e3), st.none() | st.floats(0, 2))
def test_the_unit_of_time_changes_neither_rewards_nor_what_is_silent(
    members: list[tuple[float, float]], scale: float, noise: float | None
) -> None:
    one, other = group(*members), group(*((p, t * scale) for p, t in members))
    assert [r.total for r in one] == pytest.approx([r.total for r in other])
    sd = compared(one, DEFAULT).sd_log_t
    assume(noise is None or sd is None or abs(sd - NOISE_FACTOR * noise) > 1e-6)
    assert compared(one, DEFAULT, noise).silent == compared(other, DEFAULT, noise).silent


@given(GROUPS, st.none() | st.floats(0, 2), st.booleans())
def test_a_group_that_trains_has_advantages_of_the_size_of_its_returns(
    members: list[tuple[float, float]], noise: float | None, advantage_std: bool
) -> None:
    settings = replace(DEFAULT, advantage_std=advantage_std)
    rewards = group(*members)
    found = compared(rewards, settings, noise)
    performances = {p for p, _ in members}
    if len(performances) == 1:
        opened = noise is not None and found.sd_log_t is not None and found.sd_log_t >= 3 * noise
        assert (found.silent is None) <= opened
    if found.silent is None:
        advantages = [member.steps[0].advantage for member in group_advantages(rewards, settings)]
        assert sum(advantages) == pytest.approx(0, abs=1e-6)
        if advantage_std:
            assert sum(a * a for a in advantages) / len(advantages) == pytest.approx(1, abs=1e-3)


def test_noise_is_measured_like_what_it_is_compared_with() -> None:
    assert sd_log([2.0, 2.0 * 2.718281828459045]) == pytest.approx(0.5**0.5)
