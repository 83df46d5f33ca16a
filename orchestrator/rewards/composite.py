"""The composite reward: r_t = α·process_t + β·speed + performance.

t is the commit index over all branches of a rollout. Process is paid on the step that earned it (`rewards.process`: weights per signal, and
α = 1 unless the rollout's process exceeds its cap). Performance and speed are outcomes of the whole rollout and are paid once, on its last
step; speed = performance · h(T/T_base).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.rewards.actions import RecordedStep
from orchestrator.rewards.process import Judged, StepProcess, process_of
from orchestrator.rewards.settings import RewardSettings
from orchestrator.rewards.speed import Speed, speed_bonuses


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedMember:
    """One trainable member as stored in the data pool: verified, with all steps. `steps` in commit order; `cut_off`: those of `marked` that have no
    other mark."""

    member: int
    performance: float  # the verdict's reward, in [0, 1]
    agent_s: float  # wall time without platform queueing, seconds
    steps: Sequence[RecordedStep]
    marked: Collection[int] = frozenset()  # commit indices of steps with a mark
    cut_off: Collection[int] = frozenset()
    judged: Judged = field(default_factory=dict)  # the verifier's process scores


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReward:
    """r_t with its components: `reward` = α·process.value + β·speed + performance."""

    idx: int  # t
    process: StepProcess
    alpha: float
    speed: float  # performance · h(T/T_base) on the last step, else 0
    beta: float
    performance: float  # on the last step, else 0
    reward: float
    weight: int  # train weight: 0 for a marked step, which still counts in the returns
    cut_off: bool = False  # its train weight is 1 with a negative advantage


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReward:
    """All rewards of a member. `total` = Σ_t r_t; without any step it is performance + speed, which the last step would have received."""

    member: int
    performance: float
    speed: Speed
    steps: tuple[StepReward, ...]
    total: float
    alpha: float = 1.0
    by_signal: Mapping[str, float] = field(default_factory=dict)  # total payment per process signal
    failed: tuple[str, ...] = ()  # sentences about process signals without a value


def rollout_reward(outcome: VerifiedMember, speed: Speed, settings: RewardSettings) -> RolloutReward:
    """Compose one member's rewards.

    Two steps, the first ill-formed, success in 10 s against a base of 20 s, so h = 1/(1+0.5) = 0.667: r_0 = 0.02·(−1) = −0.02 and
    r_1 = 0.1·0.667 + 1 = 1.067.

    >>> from orchestrator.contracts.marks import ParseStatus
    >>> from orchestrator.rewards.actions import ParsedAction
    >>> from orchestrator.contracts.states import SpeedBase
    >>> steps = [RecordedStep(ParsedAction(content="<oops", parse=ParseStatus.ILL_FORMED)), RecordedStep(ParsedAction(content="7"))]
    >>> speed = Speed(agent_s=10.0, base_s=20.0, base=SpeedBase.REFERENCE, bonus=1 / 1.5)
    >>> reward = rollout_reward(VerifiedMember(member=0, performance=1.0, agent_s=10.0, steps=steps), speed, RewardSettings())
    >>> [round(step.reward, 3) for step in reward.steps], round(reward.total, 3)
    ([-0.02, 1.067], 1.047)
    """
    if not 0 <= outcome.performance <= 1:  # also refuses NaN
        raise ValueError(f"performance of member {outcome.member} is {outcome.performance}, not in [0, 1]")
    n = len(outcome.steps)
    assert all(0 <= idx < n for idx in outcome.marked), "a mark names a step of the rollout"
    beta = settings.speed_weight
    process = process_of(outcome.steps, outcome.judged, settings, marked=outcome.marked)
    alpha = process.alpha
    steps: list[StepReward] = []
    for idx, scored in enumerate(process.steps):
        bonus, performance = (speed.bonus, outcome.performance) if idx == n - 1 else (0.0, 0.0)
        reward = alpha * scored.value + beta * bonus + performance
        weight = 0 if idx in outcome.marked else 1
        steps.append(
            StepReward(
                idx=idx,
                process=scored,
                alpha=alpha,
                speed=bonus,
                beta=beta,
                performance=performance,
                reward=reward,
                weight=weight,
                cut_off=idx in outcome.cut_off,
            )
        )
    total = math.fsum(step.reward for step in steps) if steps else beta * speed.bonus + outcome.performance
    return RolloutReward(
        member=outcome.member,
        performance=outcome.performance,
        speed=speed,
        steps=tuple(steps),
        total=total,
        alpha=alpha,
        by_signal=process.by_signal(),
        failed=process.failed,
    )


def group_rewards(
    outcomes: Sequence[VerifiedMember], settings: RewardSettings, reference_s: float | None = None
) -> list[RolloutReward]:
    """Rewards of a group's trainable members, in their order. `reference_s`: the task's reference time, if it has one.

    Lost members are not passed in: they have no performance, and their times must not be a base for others.
    """
    speeds = speed_bonuses([o.performance for o in outcomes], [o.agent_s for o in outcomes], reference_s)
    return [rollout_reward(outcome, speed, settings) for outcome, speed in zip(outcomes, speeds, strict=True)]
