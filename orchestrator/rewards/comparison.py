"""Decides whether the members of a group can be compared: whether they differ by more than noise.

Different performance is a signal. If performance is equal, only speed is left. A difference in speed caused by the machine gives no training
signal.
With `zero_signal = "returns"` a group of equal performance therefore trains only if

    sd(log T) >= 3 · noise      noise = sd(log T) of at least 8 replays of one recorded rollout under the run's load

and if its speed bonuses range as far as its process payments, those before any step too: else style would rank steps against the speed that
lets it train.

With `advantage_std` the same holds for a group whose performances vary less than its speed bonuses: division by the small standard deviation
of its returns would make the noise of speed as large as a success. It would do so with style, too: a group is also silent if its process payments
vary more than its performances and more than its speed bonuses, or if more was paid before some step. The reward to go of that step lacks it, so
the divided advantages would be large even if all members were paid the same.

T in seconds; both are sample standard deviations of the natural logarithm, so the unit of T does not matter. Process alone trains no group: its
signals rate the style of a step, and a group that fails in better style must not be preferred for it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import pstdev, stdev
from typing import Final

from orchestrator.contracts.choices import ZeroSignal
from orchestrator.contracts.states import Silence
from orchestrator.rewards.composite import RolloutReward
from orchestrator.rewards.settings import RewardSettings
from orchestrator.rewards.speed import MIN_S

NOISE_FACTOR: Final = 3.0
EQUAL: Final = 1e-9  # float sums closer than this are equal
ALIKE: Final = 1e-3
"""Performances closer than this count as equal: below it, speed (up to β = 0.1) would rank the members without its gate."""
MIN_SPREAD: Final = 1e-4
"""A group with a smaller standard deviation of total rewards is silent if returns decide or divide: dividing by less would only amplify noise.
Totals are not discounted: else members of many steps would be equal whatever they achieved."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The compared values. `sd_log_t`: of the successful members, None for fewer than two. `silent` None: the group trains."""

    sd_log_t: float | None
    noise: float | None
    silent: Silence | None


def sd_log(seconds: Sequence[float]) -> float:
    """Sample standard deviation of log T, for at least two times. Used for a group's members and for the replays that measure the noise.

    >>> round(sd_log([5.0, 50.0, 500.0]), 3), sd_log([7.0, 7.0])
    (2.303, 0.0)
    """
    return stdev(math.log(max(MIN_S, t)) for t in seconds)


def compared(
    rewards: Sequence[RolloutReward], settings: RewardSettings, noise: float | None = None
) -> Comparison:
    """Compare a group's trainable members. `noise`: the measured sd(log T) of replays, None if not measured.

    >>> from orchestrator.rewards.actions import ParsedAction, RecordedStep
    >>> from orchestrator.rewards.composite import VerifiedMember, group_rewards
    >>> step = RecordedStep(ParsedAction(content="7"))
    >>> outcomes = [VerifiedMember(member=i, performance=1.0, agent_s=t, steps=[step]) for i, t in enumerate((5.0, 50.0, 500.0))]
    >>> group = group_rewards(outcomes, RewardSettings())
    >>> compared(group, RewardSettings()).silent.value
    'equal performance; speed noise not measured'
    >>> compared(group, RewardSettings(), noise=0.2).silent is None, compared(group, RewardSettings(), noise=1.0).silent.value
    (True, 'equal performance; speed differs by less than 3 x its noise')
    """
    assert noise is None or 0 <= noise < math.inf, "a measured standard deviation"
    times = [reward.speed.agent_s for reward in rewards if reward.performance > 0]
    sd_log_t = sd_log(times) if len(times) >= 2 else None
    return Comparison(sd_log_t, noise, _silence(rewards, settings, sd_log_t, noise))


def _silence(
    rewards: Sequence[RolloutReward], settings: RewardSettings, sd_log_t: float | None, noise: float | None
) -> Silence | None:
    by_returns = settings.zero_signal == ZeroSignal.RETURNS
    performances = [reward.performance for reward in rewards]
    spread, paid_speed = _range(performances), settings.speed_weight * _range(_bonuses(rewards))
    if spread <= ALIKE:
        if not by_returns or settings.speed_weight == 0:
            return Silence.EQUAL_PERFORMANCE
        if sd_log_t is None:
            return Silence.NO_SUCCESS
        if noise is None:
            return Silence.NOT_MEASURED
        # If the clock is too coarse for the replays, the noise is 0.
        if sd_log_t < NOISE_FACTOR * noise or sd_log_t <= EQUAL:
            return Silence.WITHIN_NOISE
        if _style(rewards) > paid_speed:
            return Silence.BELOW_PROCESS
    if settings.advantage_std:
        above_noise = sd_log_t is not None and noise is not None and sd_log_t >= NOISE_FACTOR * noise
        of_performance, of_speed = pstdev(performances), settings.speed_weight * pstdev(_bonuses(rewards))
        if of_speed > of_performance and not above_noise:
            return Silence.BELOW_SPEED
        # Ranges: of many members with one success, the deviation is small and the difference is not.
        if _style(rewards) > max(spread, paid_speed):
            return Silence.BELOW_PROCESS
    if (by_returns or settings.advantage_std) and pstdev(reward.total for reward in rewards) < MIN_SPREAD:
        return Silence.EQUAL_RETURNS
    return None


def _range(values: Iterable[float]) -> float:
    found = list(values)
    return max(found) - min(found) if found else 0.0


def _bonuses(rewards: Sequence[RolloutReward]) -> list[float]:
    return [reward.speed.bonus for reward in rewards]


def _style(rewards: Sequence[RolloutReward]) -> float:
    """How far process moves a step's advantage at most: members were paid differently, or one before a step, whose reward to go lacks it."""
    return max(_range(map(_process, rewards)), *map(_paid_before_a_step, rewards))


def _process(reward: RolloutReward) -> float:
    """A member's process payments over all its steps."""
    return sum(step.alpha * step.process.value for step in reward.steps)


def _paid_before_a_step(reward: RolloutReward) -> float:
    """The most, in absolute value, that process paid before one of a member's steps."""
    return max(
        (abs(paid) for paid in accumulate(step.alpha * step.process.value for step in reward.steps[:-1])),
        default=0.0,
    )
