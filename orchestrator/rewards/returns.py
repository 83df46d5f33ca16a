"""Returns, baseline and advantage: Â_t = Σ_{p≥t} γ^{p−t} r_p − B_i.

Every branch of a rollout shares its returns and its baseline: t runs over the commit order of all branches. B_i is the group's
mean return (Σ_p γ^p r_p of each trainable member), or the mean of the other members with `leave_one_out`. With `advantage_std`
advantages are divided by the group's population standard deviation of performance + 1e-4. A marked step counts in the returns
and has train weight 0. Negative advantages are scaled, if at all, in the loss and not here: what is stored is Â.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal

from orchestrator.rewards.composite import RolloutReward
from orchestrator.rewards.settings import RewardSettings

STD_FLOOR = 1e-4
EQUAL = 1e-9  # returns are sums of floats: closer than this they are equal


@dataclass(frozen=True, slots=True)
class StepAdvantage:
    """`advantage` = (`return_to_go` − the member's baseline) / its divisor."""

    idx: int  # t
    return_to_go: float  # Σ_{p≥t} γ^{p−t} r_p
    advantage: float
    weight: int  # train weight, 0 or 1


@dataclass(frozen=True, slots=True)
class MemberAdvantage:
    """One member's advantages. `rollout_return` = Σ_p γ^p r_p, its return-to-go at the first step."""

    member: int
    rollout_return: float
    baseline: float
    divisor: float
    steps: tuple[StepAdvantage, ...]


def returns_to_go(rewards: Sequence[float], gamma: float = 1.0) -> list[float]:
    """Σ_{p≥t} γ^{p−t} r_p for every t.

    >>> returns_to_go([-0.25, 0.0, 1.0]), returns_to_go([-0.25, 0.0, 1.0], gamma=0.5)
    ([0.75, 1.0, 1.0], [0.0, 0.5, 1.0])
    """
    out: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        out.append(following)
    return out[::-1]


def zero_signal(
    rewards: Sequence[RolloutReward], by: Literal["performance", "returns"] = "performance"
) -> bool:
    """Whether all members did equally well, so that the group teaches nothing: equal performance, or equal total rewards.

    By performance a group of equal successes is dropped even when their speeds differ; by returns it is kept.
    """
    values = [reward.performance if by == "performance" else reward.total for reward in rewards]
    return not values or max(values) - min(values) <= EQUAL


def group_advantages(rewards: Sequence[RolloutReward], settings: RewardSettings) -> list[MemberAdvantage]:
    """Advantages of a group's trainable members, in their order.

    Four members of one step each, one success, no speed bonus: B = 0.25, so 0.75 and three times −0.25; the population standard
    deviation of performance is 0.433, hence with `advantage_std` 1.732 and −0.577.

    >>> from orchestrator.rewards.composite import Outcome, group_rewards
    >>> from orchestrator.rewards.process import ParsedAction
    >>> tries = [Outcome(i, performance, 9.0, [ParsedAction(content="7")]) for i, performance in enumerate([1, 0, 0, 0])]
    >>> def advantages(**changes):
    ...     settings = RewardSettings(speed_weight=0.0, **changes)
    ...     group = group_advantages(group_rewards(tries, settings), settings)
    ...     return [round(member.steps[0].advantage, 3) for member in group]
    >>> advantages(), advantages(leave_one_out=True), advantages(advantage_std=True)
    ([0.75, -0.25, -0.25, -0.25], [1.0, -0.333, -0.333, -0.333], [1.732, -0.577, -0.577, -0.577])
    """
    assert len(rewards) >= 2, "a group with one member has no baseline: it was filtered"
    to_go = [returns_to_go([step.reward for step in reward.steps], settings.gamma) for reward in rewards]
    whole = [line[0] if line else reward.total for line, reward in zip(to_go, rewards, strict=True)]
    divisor = (
        pstdev([reward.performance for reward in rewards]) + STD_FLOOR if settings.advantage_std else 1.0
    )
    members: list[MemberAdvantage] = []
    for i, reward in enumerate(rewards):
        baseline = fmean(whole[:i] + whole[i + 1 :]) if settings.leave_one_out else fmean(whole)
        steps = tuple(
            StepAdvantage(step.idx, value, (value - baseline) / divisor, step.weight)
            for step, value in zip(reward.steps, to_go[i], strict=True)
        )
        members.append(MemberAdvantage(reward.member, whole[i], baseline, divisor, steps))
    return members
