"""`[reward]` and `[reward.process.NAME]`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, field_validator, model_validator

from orchestrator.contracts.choices import BatchScaling, SignalSource, SignalSpan, ZeroSignal
from orchestrator.contracts.numbers import INT2
from orchestrator.settings.section import Section
from orchestrator.settings.timeouts import Seconds

MAX_WEIGHT: Final = 1e6
"""The heaviest that a part of a reward may be, next to a performance of 1: sums of rewards stay finite."""
Weight = Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)]


class ProcessSignal(Section):
    """One process signal: what its values in [-1, 1] are worth, and where they come from. A weight of 0 switches it off."""

    weight: Weight = 0.02
    """The reward of a value of 1; 0 switches the signal off."""
    per: SignalSpan = SignalSpan.STEP
    """step pays each step weight · value, rollout pays weight · the mean over the steps, so that more steps earn no more."""
    source: SignalSource = SignalSource.FUNCTION
    """function is a named function, built in or an entry point of penstock.process_signals, verifier the task's process.json."""


PROCESS: Final[Mapping[str, ProcessSignal]] = {
    "ill_formed_tool_call": ProcessSignal(),
    "language_mixing": ProcessSignal(),
    "reasoning_structure": ProcessSignal(),
    "repeated_calls": ProcessSignal(weight=0.01),
    "structured_reasoning": ProcessSignal(per=SignalSpan.ROLLOUT),
}
"""The signals that a run pays by default; `[reward.process.NAME]` changes or adds one, and leaves the others."""


class RewardSection(Section):
    """Composite reward: performance + beta · speed + alpha · process. alpha is 1, or less where a rollout's process exceeds `process_cap`."""

    process: dict[str, ProcessSignal] = Field(default_factory=lambda: dict(PROCESS))
    """The process signals by name; what is given for one changes those keys of its default alone."""
    process_cap: Weight = 0.2
    """The most that process signals add to or take from one rollout, in absolute value."""
    speed_weight: Weight = 0.1
    """Beta: the most that speed adds to a rollout, for a performance of 1."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The discount of rewards to go, per step."""
    leave_one_out: bool = False
    """Whether the baseline of a member leaves its own return out."""
    advantage_std: bool = False
    """Whether advantages are divided by the group's standard deviation of returns; refused with a `gamma` below 1."""
    batch_scale: BatchScaling = BatchScaling.NONE
    """Whether the trainer divides a batch's advantages by their spread (std), and centres them before (whiten)."""
    zero_signal: ZeroSignal = ZeroSignal.RETURNS
    """The value that must differ among the members of a group for it to train."""
    noise_replays: Annotated[int, Field(ge=8, le=INT2)] = 10
    """How many replays of one recorded rollout measure the speed noise of a scaffold."""
    noise_interval_s: Seconds = 3600.0
    """Seconds after which the speed noise of a scaffold is measured again."""

    @property
    def measures_noise(self) -> bool:
        """Whether the run's rewards need the noise: speed is rewarded, and a gate of `rewards.comparison` waits for its noise."""
        return self.speed_weight > 0 and (self.zero_signal == ZeroSignal.RETURNS or self.advantage_std)

    @model_validator(mode="before")
    @classmethod
    def _replaced(cls, given: Any) -> Any:
        for key, advice in REPLACED.items():
            if isinstance(given, dict) and key in given:
                raise ValueError(f"{key} is not a key any more: {advice}")
        return given

    @field_validator("process", mode="before")
    @classmethod
    def _merge_defaults(cls, given: Any) -> Any:
        """A signal's keys in the file replace those keys of its default, and no others."""
        if not isinstance(given, dict):
            return given
        signals: dict[str, Any] = {name: signal.model_dump() for name, signal in PROCESS.items()}
        for name, keys in given.items():
            signals[name] = {**signals.get(name, {}), **keys} if isinstance(keys, dict) else keys
        return signals


REPLACED: Final = {
    "process_weight": 'write [reward.process.NAME] weight = …, per = "step" or "rollout", and process_cap for their sum',
    "signals": "write [reward.process.NAME], and weight = 0 for a signal that to switch a signal off",
}


def as_stored(section: Mapping[str, Any]) -> dict[str, Any]:
    """`[reward]` as a run stores it. A section from before signals had weights paid the mean of its three signals times `process_weight`:
    `per = "rollout"` means the same. A signal that was added to the defaults after the run began stays off."""
    values = dict(section)
    defaults: dict[str, Any] = {name: {"weight": 0.0} for name in PROCESS}
    weight = values.pop("process_weight", None)
    if weight is None:
        return {**values, "process": defaults | values["process"]} if "process" in values else values
    weighted = {
        name: {"weight": weight, "per": "rollout"}
        for name in ("ill_formed_tool_call", "language_mixing", "reasoning_structure")
    }
    return {**values, "process": defaults | weighted, "process_cap": weight}
