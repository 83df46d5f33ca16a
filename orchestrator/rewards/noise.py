"""The natural variation of the agent's time: sd(log T) over replays of one recorded rollout under the run's load.

The speed bonus compares times. Two identical rollouts do not take the same time: rollout servers batch, sandboxes wait for a core.
A group with equal performance trains on its times only if they differ by more than this variation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from orchestrator.rewards.comparison import sd_log
from orchestrator.rewards.speed import MIN_S

MIN_REPLAYS: Final = 8
"""A standard deviation of 8 draws of one normal distribution is within a factor of 0.5 to 1.5 of the true one in 95 of 100 cases."""


@dataclass(frozen=True, slots=True)
class Noise:
    """`sd_log_t`: standard deviation of log T, n − 1 in the denominator. `seconds`: the geometric mean of T."""

    replays: int
    sd_log_t: float
    seconds: float


def replay_noise(seconds: Sequence[float]) -> Noise | None:
    """The noise of T from the times of replays, in seconds; None with fewer than MIN_REPLAYS.

    >>> noise = replay_noise([10, 10, 10, 10, 20, 20, 20, 20])
    >>> round(noise.sd_log_t, 3), round(noise.seconds, 2)
    (0.371, 14.14)
    >>> replay_noise([10.0] * 7) is None
    True
    """
    if len(seconds) < MIN_REPLAYS:
        return None
    logs = [math.log(max(MIN_S, second)) for second in seconds]
    return Noise(len(seconds), sd_log(seconds), math.exp(fmean(logs)))
