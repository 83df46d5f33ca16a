"""Returns, baseline and advantage: Â_t = Σ_{p≥t} γ^{p−t} r_p − B_i.

All branches of a rollout share its returns and its baseline: t runs over the commit order of all branches. B_i is the group's
mean return (Σ_p γ^p r_p of each trainable member), or the mean of the other members with `leave_one_out`. With `advantage_std`
advantages are divided by the group's population standard deviation of returns; `comparison` has checked that it is large enough, and
`check_rewards` that γ is 1: else a return-to-go near the end is on another scale than the returns that make the divisor. A marked
step counts in the returns and has train weight 0. A step whose only mark is `cut_off` has train weight 1 where its advantage is negative: a reply
that does not end is never better than a wrong answer, and never an example. Scaling of negative advantages, if any, happens in the loss and not
here: Â is stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from orchestrator.rewards.composite import RolloutReward, StepReward
from orchestrator.rewards.settings import RewardSettings

EPS = 1e-8  # only prevents 0/0; groups with so little spread are silent


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAdvantage:
    """`advantage` = (`return_to_go` − the member's baseline) / its divisor."""

    idx: int  # t
    return_to_go: float  # Σ_{p≥t} γ^{p−t} r_p
    advantage: float
    weight: int  # train weight, 0 or 1


@dataclass(frozen=True, slots=True, kw_only=True)
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
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]


def group_advantages(rewards: Sequence[RolloutReward], settings: RewardSettings) -> list[MemberAdvantage]:
    """Advantages of a group's trainable members, in their order.

    Four members of one step each, one success, no speed bonus: B = 0.25, so 0.75 and three times −0.25. The population standard
    deviation of returns is 0.433, so with `advantage_std` they are 1.732 and −0.577.

    >>> from orchestrator.rewards.actions import ParsedAction, RecordedStep
    >>> from orchestrator.rewards.composite import VerifiedMember, group_rewards
    >>> step = RecordedStep(ParsedAction(content="7"))
    >>> tries = [VerifiedMember(member=i, performance=performance, agent_s=9.0, steps=[step]) for i, performance in enumerate([1, 0, 0, 0])]
    >>> def advantages(**changes):
    ...     settings = RewardSettings(speed_weight=0.0, **changes)
    ...     group = group_advantages(group_rewards(tries, settings), settings)
    ...     return [round(member.steps[0].advantage, 3) for member in group]
    >>> advantages(), advantages(leave_one_out=True), advantages(advantage_std=True)
    ([0.75, -0.25, -0.25, -0.25], [1.0, -0.333, -0.333, -0.333], [1.732, -0.577, -0.577, -0.577])
    """
    assert len(rewards) >= 2, "a group with one member has no baseline: it was filtered"
    to_go = [returns_to_go([step.reward for step in reward.steps], settings.gamma) for reward in rewards]
    returns = [line[0] if line else reward.total for line, reward in zip(to_go, rewards, strict=True)]
    divisor = pstdev(returns) + EPS if settings.advantage_std else 1.0
    members: list[MemberAdvantage] = []
    for i, reward in enumerate(rewards):
        baseline = fmean(returns[:i] + returns[i + 1 :]) if settings.leave_one_out else fmean(returns)
        steps = tuple(
            _of_step(step, value, (value - baseline) / divisor)
            for step, value in zip(reward.steps, to_go[i], strict=True)
        )
        members.append(
            MemberAdvantage(
                member=reward.member,
                rollout_return=returns[i],
                baseline=baseline,
                divisor=divisor,
                steps=steps,
            )
        )
    return members


def _of_step(step: StepReward, return_to_go: float, advantage: float) -> StepAdvantage:
    weight = 1 if step.cut_off and advantage < 0 else step.weight
    return StepAdvantage(idx=step.idx, return_to_go=return_to_go, advantage=advantage, weight=weight)
