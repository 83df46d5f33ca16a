"""Rewards of a concluded group: the pure core applied to the data pool's rows. Every component is stored."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.contracts.states import Purpose, Silence
from orchestrator.pool.groups import GroupMember, NewReward, TerminalGroup
from orchestrator.pool.steps import StepReading, kept_out
from orchestrator.rewards.actions import ParsedAction, RecordedStep, ToolResult
from orchestrator.rewards.comparison import Comparison, compared
from orchestrator.rewards.composite import RolloutReward, VerifiedMember, group_rewards
from orchestrator.rewards.returns import MemberAdvantage, group_advantages
from orchestrator.rewards.settings import RewardSettings
from orchestrator.rewards.speed import MIN_S


@dataclass(frozen=True, slots=True)
class RewardedGroup:
    """`silent`: why the group gives no training signal, None where it trains. Its rewards are stored without advantages: there is nothing to train
    on, and division by a spread near zero would only make them look large. `failed`: sentences about process signals without a value."""

    rewards: Sequence[NewReward]
    silent: Silence | None
    failed: tuple[str, ...] = ()


def reward_group(
    group: TerminalGroup, kept: Collection[int], settings: RewardSettings, noise: float | None = None
) -> RewardedGroup:
    """The next revision of each kept member's reward. `noise`: the run's measured sd(log T) of replays, None if not measured."""
    members = [member for member in group.members if member.member in kept]
    reference = group.settings.get("agent", {}).get("reference_sec")
    computed = group_rewards([_outcome(member) for member in members], settings, reference)
    found = compared(computed, settings, noise)
    advantages: list[MemberAdvantage | None] = [None] * len(members)
    if group.purpose is Purpose.TRAIN and len(members) >= 2 and found.silent is None:
        advantages = [*group_advantages(computed, settings)]
    shown = found.silent if group.purpose is Purpose.TRAIN else None
    rows = [
        _row(m, reward, advantage, settings, Comparison(found.sd_log_t, found.noise, shown))
        for m, reward, advantage in zip(members, computed, advantages, strict=True)
    ]
    failed = dict.fromkeys(sentence for reward in computed for sentence in reward.failed)
    return RewardedGroup(rows, found.silent, tuple(failed))


def _outcome(member: GroupMember) -> VerifiedMember:
    assert member.performance is not None, "a kept member has a verdict"
    return VerifiedMember(
        member=member.member,
        performance=member.performance,
        agent_s=max(MIN_S, member.agent_s),  # the runner has subtracted the queueing time
        steps=[_step(step) for step in member.steps],
        marked=frozenset(i for i, step in enumerate(member.steps) if step.marks),
        cut_off=frozenset(
            i for i, step in enumerate(member.steps) if step.marks and not kept_out(step.marks)
        ),
        judged=member.judged or {},
    )


def _step(step: StepReading) -> RecordedStep:
    action = ParsedAction.from_reply(step.reply, step.parse, shows_tools=step.shows_tools)
    results = step.tools
    if step.unrecorded:
        missing = action.tool_calls[len(results) :]
        results += tuple(ToolResult(name=call.name, recorded=False) for call in missing)
    return RecordedStep(action, results, step.agent)


def _row(
    member: GroupMember,
    reward: RolloutReward,
    advantage: MemberAdvantage | None,
    settings: RewardSettings,
    comparison: Comparison,
) -> NewReward:
    assert member.verdict_revision is not None
    per_step: list[dict[str, Any]] = []
    for i, step in enumerate(reward.steps):
        at = advantage.steps[i] if advantage else None
        per_step.append(
            {
                "idx": step.idx,
                "process": step.process.value,
                "signals": dict(step.process.signals),
                "paid": {name: step.alpha * worth for name, worth in step.process.worth},
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
        alpha=reward.alpha,
        beta=settings.speed_weight,  # also without any step
        total=reward.total,
        t_agent=reward.speed.agent_s,
        t_base=reward.speed.base_s,
        t_base_origin=reward.speed.base,
        process_by_signal=reward.by_signal,
        sd_log_t=comparison.sd_log_t,
        speed_noise=comparison.noise,
        silent=comparison.silent,
        baseline=advantage.baseline if advantage else None,
        divisor=advantage.divisor if advantage else None,
        advantage=advantage.steps[0].advantage
        if advantage and advantage.steps
        else (0.0 if advantage else None),
        per_step=per_step,
    )
