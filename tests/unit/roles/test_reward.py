"""The stored parts of a reward give its total."""

from dataclasses import replace

import pytest

from orchestrator.contracts.marks import ParseStatus
from orchestrator.contracts.states import FailureClass, Purpose, RolloutState
from orchestrator.pool.groups import GroupMember, TerminalGroup
from orchestrator.pool.steps import StepReading
from orchestrator.rewards.actions import ToolResult
from orchestrator.rewards.settings import RewardSettings
from orchestrator.roles.reward import _step, reward_group

STEP = StepReading(
    idx=0,
    parse=ParseStatus.ILL_FORMED,
    reply={"role": "assistant", "content": "<oops"},
    marks=frozenset(),
    versions=frozenset({0}),
)


@pytest.mark.parametrize("steps", [[], [STEP], [STEP, STEP]], ids=len)
def test_the_parts_of_a_reward_add_up_to_its_total_also_of_a_rollout_without_any_step(
    steps: list[StepReading],
) -> None:
    member = GroupMember(
        rollout_id=1,
        member=0,
        attempt=1,
        state=RolloutState.VERIFIED,
        failure=FailureClass.COMPLETED,
        reason=None,
        performance=0.5,
        verdict_revision=1,
        agent_s=10.0,
        queued_s=0.0,
        steps=steps,
    )
    group = TerminalGroup(
        group_id=1,
        purpose=Purpose.RECORD,
        domain="general",
        scaffold="shell",
        pinned_version=None,
        settings={"agent": {"reference_sec": 20.0}},
        members=[member],
    )
    [reward] = reward_group(group, [0], RewardSettings()).rewards
    assert reward.speed > 0 and (reward.t_base, reward.t_base_origin) == (20.0, "reference")
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
            rollout_id=i,
            member=i,
            attempt=1,
            state=RolloutState.VERIFIED,
            failure=FailureClass.COMPLETED,
            reason=None,
            performance=performance,
            verdict_revision=1,
            agent_s=5.0 + 9 * i,
            queued_s=0.0,
            steps=[STEP],
        )
        for i, performance in enumerate(performances)
    ]
    group = TerminalGroup(
        group_id=1,
        purpose=Purpose.TRAIN,
        domain="general",
        scaffold="shell",
        pinned_version=None,
        settings={"agent": {"reference_sec": 20.0}},
        members=members,
    )
    found = reward_group(group, [0, 1, 2], RewardSettings(advantage_std=True))
    assert (found.silent is None) is compared
    assert len(found.rewards) == 3
    for reward in found.rewards:
        known = (
            reward.baseline,
            reward.divisor,
            reward.advantage,
            *(s["advantage"] for s in reward.per_step),
        )
        assert [value is not None for value in known] == [compared] * 4


def test_calls_after_the_last_that_is_recorded_have_results_that_say_so() -> None:
    calls = [{"name": "bash", "arguments": "{}"}, {"name": "edit", "arguments": "{}"}]
    seen = ToolResult(name="bash", exit_code=1, bytes=5)
    step = replace(STEP, parse=ParseStatus.OK, reply={"tool_calls": calls}, tools=(seen,))
    assert _step(step).results == (seen,)
    assert _step(replace(step, unrecorded=True)).results == (seen, ToolResult(name="edit", recorded=False))
