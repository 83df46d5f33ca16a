"""What is stored of a reward gives its total."""

import pytest

from orchestrator.contracts.states import FailureClass, Purpose, RolloutState
from orchestrator.flow.reward import reward_group
from orchestrator.pool.groups import GroupMember, TerminalGroup
from orchestrator.pool.steps import StepReading
from orchestrator.rewards.settings import RewardSettings

STEP = StepReading(0, "ill_formed", {"role": "assistant", "content": "<oops"}, False, frozenset({0}))


@pytest.mark.parametrize("steps", [[], [STEP], [STEP, STEP]], ids=len)
def test_the_parts_of_a_reward_add_up_to_its_total_also_of_a_rollout_without_any_step(
    steps: list[StepReading],
) -> None:
    member = GroupMember(
        1, 0, 1, RolloutState.VERIFIED, FailureClass.COMPLETED, None, 0.5, 1, 10.0, 0.0, steps
    )
    group = TerminalGroup(1, Purpose.RECORD, "general", None, {"agent": {"reference_sec": 20.0}}, [member])
    [reward] = reward_group(group, [0], RewardSettings()).rewards
    assert reward.speed > 0
    parts = reward.performance + reward.beta * reward.speed + reward.alpha * reward.process
    assert reward.total == pytest.approx(parts, abs=1e-12)


@pytest.mark.parametrize(
    ("performances", "compared"),
    [((1.0, 1.0, 1.0), False), ((0.0, 0.0, 0.0), False), ((1.0, 0.0, 1.0), True)],
)
def test_a_group_without_signal_has_rewards_and_no_advantages(
    performances: tuple[float, ...], compared: bool
) -> None:
    members = [  # equally good, but not equally fast
        GroupMember(
            i,
            i,
            1,
            RolloutState.VERIFIED,
            FailureClass.COMPLETED,
            None,
            performance,
            1,
            5.0 + 9 * i,
            0.0,
            [STEP],
        )
        for i, performance in enumerate(performances)
    ]
    group = TerminalGroup(1, Purpose.TRAIN, "general", None, {"agent": {"reference_sec": 20.0}}, members)
    found = reward_group(group, [0, 1, 2], RewardSettings(advantage_std=True))
    assert found.zero_signal is not compared
    assert len(found.rewards) == 3
    for reward in found.rewards:
        known = (
            reward.baseline,
            reward.divisor,
            reward.advantage,
            *(s["advantage"] for s in reward.per_step),
        )
        assert [value is not None for value in known] == [compared] * 4
