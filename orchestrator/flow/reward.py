"""Rewards of a concluded group: the pure core applied to what the data pool holds. Every component is kept."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.contracts.states import Purpose
from orchestrator.pool.groups import GroupMember, NewReward, TerminalGroup
from orchestrator.rewards.composite import Outcome, RolloutReward, group_rewards
from orchestrator.rewards.process import ParsedAction
from orchestrator.rewards.returns import MemberAdvantage, group_advantages, zero_signal
from orchestrator.rewards.settings import RewardSettings
from orchestrator.rewards.speed import SHORTEST_S


@dataclass(frozen=True, slots=True)
class RewardedGroup:
    """`zero_signal`: the group teaches nothing. Its rewards are kept all the same, without advantages: there is nothing to train with them, and
    divided by a spread of nothing they would only look large."""

    rewards: Sequence[NewReward]
    zero_signal: bool


def reward_group(group: TerminalGroup, kept: Collection[int], settings: RewardSettings) -> RewardedGroup:
    """The next revision of each kept member's reward."""
    members = [member for member in group.members if member.member in kept]
    reference = group.settings.get("agent", {}).get("reference_sec")
    computed = group_rewards([_outcome(member) for member in members], settings, reference)
    silent = zero_signal(computed, settings.zero_signal)
    compared = group.purpose is Purpose.TRAIN and len(members) >= 2 and not silent
    advantages: list[MemberAdvantage | None] = [None] * len(members)
    if compared:
        advantages = [*group_advantages(computed, settings)]
    rows = [
        _row(m, reward, advantage, settings)
        for m, reward, advantage in zip(members, computed, advantages, strict=True)
    ]
    return RewardedGroup(rows, silent)


def _outcome(member: GroupMember) -> Outcome:
    assert member.performance is not None, "a kept member has a verdict"
    return Outcome(
        member.member,
        member.performance,
        max(SHORTEST_S, member.agent_s),  # the runner has taken the queueing off
        [ParsedAction.from_reply(step.reply, step.parse) for step in member.steps],
        frozenset(i for i, step in enumerate(member.steps) if step.marked),
    )


def _row(
    member: GroupMember, reward: RolloutReward, advantage: MemberAdvantage | None, settings: RewardSettings
) -> NewReward:
    assert member.verdict_revision is not None
    first = reward.steps[0] if reward.steps else None
    per_step = []
    for i, step in enumerate(reward.steps):
        at = advantage.steps[i] if advantage else None
        per_step.append(
            {
                "idx": step.idx,
                "process": step.process.value,
                "signals": dict(step.process.signals),
                "speed": step.speed,
                "performance": step.performance,
                "reward": step.reward,
                "weight": step.weight,
                "return_to_go": at.return_to_go if at else None,
                "advantage": at.advantage if at else None,
            }
        )
    return NewReward(
        rollout_id=member.rollout_id,
        attempt=member.attempt,
        verdict_revision=member.verdict_revision,
        performance=reward.performance,
        speed=reward.speed.bonus,
        process=sum(step.process.value for step in reward.steps),
        alpha=first.alpha if first else 0.0,
        beta=settings.speed_weight,  # also without any step
        total=reward.total,
        t_agent=reward.speed.agent_s,
        t_base=reward.speed.base_s,
        baseline=advantage.baseline if advantage else None,
        divisor=advantage.divisor if advantage else None,
        advantage=advantage.steps[0].advantage
        if advantage and advantage.steps
        else (0.0 if advantage else None),
        per_step=per_step,
    )
