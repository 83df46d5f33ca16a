"""Returns, baseline, advantage, and groups without signal."""

from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.marks import ParseStatus
from orchestrator.rewards.actions import ParsedAction, RecordedStep
from orchestrator.rewards.composite import RolloutReward, VerifiedMember, group_rewards
from orchestrator.rewards.returns import group_advantages, returns_to_go
from orchestrator.rewards.settings import RewardSettings

GOOD = RecordedStep(ParsedAction(content="7"))
BAD = RecordedStep(ParsedAction(content="<call", parse=ParseStatus.ILL_FORMED))
DEFAULT = RewardSettings()


def group(*members: tuple[float, float, list[RecordedStep]]) -> list[RolloutReward]:
    outcomes = [
        VerifiedMember(member=i, performance=performance, agent_s=t, steps=actions)
        for i, (performance, t, actions) in enumerate(members)
    ]
    return group_rewards(outcomes, DEFAULT, reference_s=10.0)


def test_a_group_of_two_gets_the_numbers_worked_out_by_hand() -> None:
    """Success in 10 s with a bad first of two steps: r = −0.02, 1.05; failure in one good step: r = 0. B = (1.03 + 0)/2."""
    first, second = group_advantages(group((1.0, 10.0, [BAD, GOOD]), (0.0, 10.0, [GOOD])), DEFAULT)
    assert [step.return_to_go for step in first.steps] == pytest.approx([1.03, 1.05])
    assert [step.advantage for step in first.steps] == pytest.approx([0.515, 0.535])
    assert [step.advantage for step in second.steps] == pytest.approx([-0.515])
    assert [first.rollout_return, first.baseline, first.divisor] == pytest.approx([1.03, 0.515, 1.0])
    assert second.baseline == first.baseline


def test_leave_one_out_compares_a_member_with_the_others_only() -> None:
    members = group_advantages(
        group((1.0, 10.0, [GOOD]), (0.0, 1.0, [GOOD]), (0.0, 1.0, [GOOD])),
        replace(DEFAULT, leave_one_out=True),
    )
    assert [m.baseline for m in members] == pytest.approx([0.0, 1.05 / 2, 1.05 / 2])


def test_advantage_std_divides_by_the_spread_of_returns() -> None:
    rewards = group((1.0, 10.0, [GOOD]), (1.0, 40.0, [GOOD]), (0.0, 1.0, [GOOD]), (0.0, 1.0, [BAD]))
    plain = group_advantages(rewards, DEFAULT)
    scaled = group_advantages(rewards, replace(DEFAULT, advantage_std=True))
    spread = pstdev([1.05, 1.02, 0.0, -0.02])
    assert [m.divisor for m in scaled] == pytest.approx([spread] * 4)
    for a, b in zip(plain, scaled, strict=True):
        assert b.steps[0].advantage == pytest.approx(a.steps[0].advantage / spread)


def test_a_marked_step_counts_in_the_returns_and_does_not_train() -> None:
    outcomes = [
        VerifiedMember(member=0, performance=1.0, agent_s=10.0, steps=[GOOD, BAD, GOOD], marked={2}),
        VerifiedMember(member=1, performance=0.0, agent_s=10.0, steps=[GOOD]),
    ]
    member = group_advantages(group_rewards(outcomes, DEFAULT, 10.0), DEFAULT)[0]
    assert [step.weight for step in member.steps] == [1, 1, 0]
    assert member.steps[0].return_to_go == pytest.approx(1.05 - 0.02)


def test_a_step_that_was_cut_off_trains_only_where_its_advantage_is_negative() -> None:
    def weights(performance: float, marked: set[int], cut_off: set[int]) -> list[int]:
        outcomes = [
            VerifiedMember(
                member=0,
                performance=performance,
                agent_s=10.0,
                steps=[GOOD, GOOD],
                marked=marked,
                cut_off=cut_off,
            ),
            VerifiedMember(member=1, performance=0.5, agent_s=10.0, steps=[GOOD]),
        ]
        member = group_advantages(group_rewards(outcomes, DEFAULT, 10.0), DEFAULT)[0]
        return [step.weight for step in member.steps]

    assert weights(0.0, {1}, {1}) == [1, 1]
    assert weights(1.0, {1}, {1}) == [1, 0]
    assert weights(0.5, {1}, {1}) == [1, 0]
    assert weights(0.0, {1}, set()) == [1, 0]


def test_gamma_discounts_what_comes_later() -> None:
    rewards = group((1.0, 10.0, [GOOD, GOOD, GOOD]), (0.0, 10.0, [GOOD]))
    member = group_advantages(rewards, replace(DEFAULT, gamma=0.5))[0]
    assert [step.return_to_go for step in member.steps] == pytest.approx([1.05 / 4, 1.05 / 2, 1.05])
    assert member.baseline == pytest.approx(1.05 / 8), "the mean of the discounted returns"


def test_a_group_of_one_has_no_baseline() -> None:
    with pytest.raises(AssertionError, match="no baseline"):
        group_advantages(group((1.0, 1.0, [GOOD])), DEFAULT)


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 1.0]),
        st.floats(0, 100),
        st.lists(st.sampled_from([GOOD, BAD]), min_size=1, max_size=6),
    ),
    min_size=2,
    max_size=8,
)


@given(MEMBERS, st.booleans(), st.booleans(), st.sampled_from([1.0, 0.9]))
def test_every_advantage_follows_from_the_stored_numbers(
    members: list[tuple[float, float, list[RecordedStep]]],
    leave_one_out: bool,
    advantage_std: bool,
    gamma: float,
) -> None:
    settings = RewardSettings(leave_one_out=leave_one_out, advantage_std=advantage_std, gamma=gamma)
    rewards = group(*members)
    advantages = group_advantages(rewards, settings)
    whole = [sum(gamma**p * step.reward for p, step in enumerate(reward.steps)) for reward in rewards]
    assert [m.rollout_return for m in advantages] == pytest.approx(whole)
    for i, (reward, member) in enumerate(zip(rewards, advantages, strict=True)):
        others = [value for j, value in enumerate(whole) if j != i] if leave_one_out else whole
        assert member.baseline == pytest.approx(fmean(others))
        assert member.divisor == pytest.approx(pstdev(whole) + 1e-8 if advantage_std else 1)
        for step in member.steps:
            literal = sum(
                gamma ** (p - step.idx) * reward.steps[p].reward for p in range(step.idx, len(reward.steps))
            )
            assert step.return_to_go == pytest.approx(literal)
            assert step.advantage == (step.return_to_go - member.baseline) / member.divisor


@given(MEMBERS)
def test_first_step_advantages_of_a_group_sum_to_zero(
    members: list[tuple[float, float, list[RecordedStep]]],
) -> None:
    advantages = group_advantages(group(*members), DEFAULT)
    assert sum(member.steps[0].advantage for member in advantages) == pytest.approx(0, abs=1e-9)


def test_no_steps_have_no_returns() -> None:
    assert returns_to_go([]) == []
