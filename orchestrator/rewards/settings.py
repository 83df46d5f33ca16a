"""The numbers that shape a reward."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from orchestrator.contracts.choices import SignalSource, ZeroSignal
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.rewards.signals import function
from orchestrator.settings.reward import PROCESS, ProcessSignal, RewardSection


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """The numbers behind rewards and advantages of one run. `negative_scale` is not here: it scales the loss of negative advantages."""

    process: Mapping[str, ProcessSignal] = field(default_factory=lambda: dict(PROCESS))
    process_cap: float = 0.2  # most that process moves a rollout's reward
    speed_weight: float = 0.1  # β
    gamma: float = 1.0
    leave_one_out: bool = False  # a member's baseline leaves its own return out
    advantage_std: bool = False  # divide by the group's standard deviation of returns; needs gamma = 1
    zero_signal: ZeroSignal = ZeroSignal.RETURNS

    @classmethod
    def of(cls, section: RewardSection) -> Self:
        """The part of `[reward]` that rewards and advantages use."""
        return cls(
            process=section.process,
            process_cap=section.process_cap,
            speed_weight=section.speed_weight,
            gamma=section.gamma,
            leave_one_out=section.leave_one_out,
            advantage_std=section.advantage_std,
            zero_signal=section.zero_signal,
        )


def check_rewards(settings: RewardSettings) -> None:
    """Raise ConfigurationError, one sentence, if a number or a name is invalid."""
    numbers = {"process_cap": settings.process_cap, "speed_weight": settings.speed_weight}
    numbers |= {f"process.{name}.weight": signal.weight for name, signal in settings.process.items()}
    for name, value in numbers.items():
        if not 0 <= value < math.inf:
            raise ConfigurationError(f"reward: {name} is {value}: set it to a number >= 0")
    if not 0 <= settings.gamma <= 1:
        raise ConfigurationError(f"reward: gamma is {settings.gamma}: set it between 0 and 1")
    # The late steps of a long rollout then differ from the mean of discounted returns by a whole reward, whatever the members differ by.
    if settings.advantage_std and settings.gamma < 1:
        raise ConfigurationError(
            f"reward: advantage_std divides by the spread of whole returns, and with gamma = {settings.gamma} the returns of single steps have "
            'another scale: begin a run with gamma = 1, or with batch_scale = "std", which divides by the spread of the advantages themselves'
        )
    if settings.zero_signal not in list(ZeroSignal):
        raise ConfigurationError(
            f"reward: zero_signal {quoted(settings.zero_signal)} is unknown; known: {', '.join(ZeroSignal)}"
        )
    for name, signal in settings.process.items():
        if signal.source == SignalSource.FUNCTION:
            function(name)
