"""The numbers that shape a reward."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.rewards.process import SIGNALS


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """What shapes rewards and advantages of one run. `negative_scale` is not here: it scales the loss of negative advantages."""

    process_weight: float = 0.1  # α = process_weight / steps of the rollout
    speed_weight: float = 0.1  # β
    signals: tuple[str, ...] = tuple(SIGNALS)
    gamma: float = 1.0
    leave_one_out: bool = False  # a member's baseline leaves its own return out
    advantage_std: bool = False  # divide by the group's standard deviation of performance + 1e-4
    zero_signal: Literal["performance", "returns"] = "performance"


def check_rewards(settings: RewardSettings) -> None:
    """Raise ConfigurationError, one sentence, when a number or a name cannot be meant."""
    for name, value in (("process_weight", settings.process_weight), ("speed_weight", settings.speed_weight)):
        if not 0 <= value < math.inf:
            raise ConfigurationError(f"reward: {name} is {value}: set it to a number >= 0")
    if not 0 <= settings.gamma <= 1:
        raise ConfigurationError(f"reward: gamma is {settings.gamma}: set it between 0 and 1")
    if settings.zero_signal not in ("performance", "returns"):
        raise ConfigurationError(
            f"reward: zero_signal {settings.zero_signal!r} is unknown; known: performance, returns"
        )
    if settings.advantage_std and settings.zero_signal == "returns":
        raise ConfigurationError(
            "reward: advantage_std divides by the spread of performance, which is 0 in groups that zero_signal = 'returns' "
            "keeps: use zero_signal = 'performance', or switch advantage_std off"
        )
    check_signals(settings.signals)


def check_signals(names: Iterable[str]) -> None:
    """Raise ConfigurationError that lists the known process signals when one of `names` is not among them."""
    for name in names:
        if name not in SIGNALS:
            raise ConfigurationError(
                f"reward: process signal {name!r} is unknown; known: {', '.join(sorted(SIGNALS))}"
            )
