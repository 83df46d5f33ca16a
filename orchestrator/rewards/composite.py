"""The composite reward: r_t = α·process_t + β·speed + performance.

t is the commit index over all branches of a rollout. Process is paid on every step; performance and speed are outcomes of the
whole rollout and are paid once, on its last step. α = 0.1/steps by default, so that process costs at most 0.1 whatever the
number of steps.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.rewards.process import ParsedAction, ProcessScore, process_score
from orchestrator.rewards.settings import RewardSettings
from orchestrator.rewards.speed import Speed, speed_bonuses


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trainable member, as the data pool knows it: verified, all steps in. `actions` in commit order."""

    member: int
    performance: float  # the verdict's reward, in [0, 1]
    agent_s: float  # wall time without platform queueing, seconds
    actions: Sequence[ParsedAction]
    marked: Collection[int] = frozenset()  # commit indices of steps with a mark: train weight 0


@dataclass(frozen=True, slots=True)
class StepReward:
    """r_t with its components: `reward` = α·process.value + β·speed + performance."""

    idx: int  # t
    process: ProcessScore
    alpha: float
    speed: float  # h(T/T_base) on the last step of a success, else 0
    beta: float
    performance: float  # on the last step, else 0
    reward: float
    weight: int  # train weight: 0 for a marked step, which still counts in the returns


@dataclass(frozen=True, slots=True)
class RolloutReward:
    """All of a member's rewards. `total` = Σ_t r_t; without any step it is what the last step would have been paid."""

    member: int
    performance: float
    speed: Speed
    steps: tuple[StepReward, ...]
    total: float


def rollout_reward(outcome: Outcome, speed: Speed, settings: RewardSettings) -> RolloutReward:
    """Compose one member's rewards.

    Two steps, the first ill-formed, success in 10 s against a base of 20 s, so h = 1/(1+0.5) = 0.667 and α = 0.1/2 = 0.05:
    r_0 = 0.05·(−1) = −0.05 and r_1 = 0.1·0.667 + 1 = 1.067.

    >>> from orchestrator.rewards.speed import SpeedBase
    >>> outcome = Outcome(0, 1.0, 10.0, [ParsedAction(content="<oops", parse="ill_formed"), ParsedAction(content="7")])
    >>> reward = rollout_reward(outcome, Speed(10.0, 20.0, SpeedBase.REFERENCE, 1 / 1.5), RewardSettings())
    >>> [round(step.reward, 3) for step in reward.steps], round(reward.total, 3)
    ([-0.05, 1.067], 1.017)
    """
    if not 0 <= outcome.performance <= 1:  # also refuses NaN
        raise ValueError(f"performance of member {outcome.member} is {outcome.performance}, not in [0, 1]")
    n = len(outcome.actions)
    assert all(0 <= idx < n for idx in outcome.marked), "a mark names a step of the rollout"
    beta = settings.speed_weight
    steps: list[StepReward] = []
    for idx, action in enumerate(outcome.actions):
        last = idx == n - 1
        process = process_score(action, settings.signals)
        alpha = settings.process_weight / n
        bonus, performance = (speed.bonus, outcome.performance) if last else (0.0, 0.0)
        reward = alpha * process.value + beta * bonus + performance
        weight = 0 if idx in outcome.marked else 1
        steps.append(StepReward(idx, process, alpha, bonus, beta, performance, reward, weight))
    total = math.fsum(step.reward for step in steps) if steps else beta * speed.bonus + outcome.performance
    return RolloutReward(outcome.member, outcome.performance, speed, tuple(steps), total)


def group_rewards(
    outcomes: Sequence[Outcome], settings: RewardSettings, reference_s: float | None = None
) -> list[RolloutReward]:
    """Rewards of a group's trainable members, in their order. `reference_s`: the task's reference time, if it has one.

    Lost members are not passed in: they have no performance, and their times are no base for others.
    """
    speeds = speed_bonuses([o.performance for o in outcomes], [o.agent_s for o in outcomes], reference_s)
    return [rollout_reward(outcome, speed, settings) for outcome, speed in zip(outcomes, speeds, strict=True)]
