"""Process: the weighted signals of a rollout, step by step, bounded for the rollout as a whole.

    process_t = Σ_signals w · v_t          a signal per step: each step is paid in full, however many there are
              + Σ_signals w · v_t / n      a signal per rollout: the mean over the n steps, so that more steps earn no more
              + Σ_signals w · v            on the last step: one number from the verifier for the whole rollout
    alpha     = min(1, cap / Σ_t |process_t|)

v in [−1, 1]. The reward takes alpha · process_t, so process moves a rollout's reward by at most `process_cap`, 0.2 by default. The worst
success (1 − 0.2) therefore stays above the best failure (0.2). Below the cap alpha is 1, and a fault costs the same at step 700 of 1,000
as at step 0 of 1.

A marked step does not exist for a function: its value is 0, and it is neither one of the n steps nor one of the steps before another. It is
the platform's fault (a reply that nothing received) or another program's work. The verifier's lists have a number for each step, marked or not.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.contracts.choices import SignalSource, SignalSpan
from orchestrator.rewards.actions import RecordedStep
from orchestrator.rewards.settings import RewardSettings
from orchestrator.rewards.signals import SIGNALS, function
from orchestrator.settings.reward import ProcessSignal

Judged = Mapping[str, float | Sequence[float]]
"""The verifier's process scores, by name: a number for the rollout, or one for each step by its commit index."""


@dataclass(frozen=True, slots=True)
class StepProcess:
    """One step's signals: `value` = Σ worth. `signals` has the value of each signal in [−1, 1], None if its function failed."""

    value: float
    signals: tuple[tuple[str, float | None], ...]
    worth: tuple[tuple[str, float], ...]  # the weighted non-zero values, before alpha


@dataclass(frozen=True, slots=True)
class ProcessReward:
    """A rollout's process: each step is paid `alpha` times its value. `failed`: sentences about functions without a value."""

    alpha: float
    steps: tuple[StepProcess, ...]
    failed: tuple[str, ...] = ()

    def by_signal(self) -> dict[str, float]:
        """Total payment per signal, alpha included. Their sum is the contribution of process to the total."""
        rewards_of: dict[str, list[float]] = {}
        for step in self.steps:
            for name, _ in step.signals:
                rewards_of.setdefault(name, [])
            for name, reward in step.worth:
                rewards_of[name].append(reward)
        return {name: self.alpha * math.fsum(parts) for name, parts in rewards_of.items()}


def process_of(
    steps: Sequence[RecordedStep],
    judged: Judged,
    settings: RewardSettings,
    *,
    marked: Collection[int] = frozenset(),
) -> ProcessReward:
    """The process of one rollout. `marked`: the commit indices of steps with a mark. The names of `settings` were checked by `check_rewards`.

    Two steps, the first ill-formed: 0.02 are deducted on that step alone.

    >>> from orchestrator.contracts.marks import ParseStatus
    >>> from orchestrator.rewards.actions import ParsedAction
    >>> steps = [RecordedStep(ParsedAction(content="<oops", parse=ParseStatus.ILL_FORMED)), RecordedStep(ParsedAction(content="7"))]
    >>> process = process_of(steps, {}, RewardSettings())
    >>> process.alpha, [step.value for step in process.steps], process.by_signal()["ill_formed_tool_call"]
    (1.0, [-0.02, 0.0], -0.02)
    """
    n = len(steps)
    failed: dict[str, str] = {}
    found: list[StepProcess] = []
    before: list[RecordedStep] = []
    unmarked = sum(idx not in marked for idx in range(n))
    active = [(name, signal) for name, signal in settings.process.items() if signal.weight > 0]
    for idx, step in enumerate(steps):
        earlier = tuple(before)
        values: list[tuple[str, float | None]] = []
        worth: list[tuple[str, float]] = []
        for name, signal in active:
            if signal.source == SignalSource.VERIFIER:
                value, parts = _judged(judged.get(name), idx, n)
                if value is None:
                    continue
            else:
                parts = unmarked
                value = 0.0 if idx in marked else _value(name, step, earlier, failed)
            values.append((name, value))
            if value:
                worth.append((name, _worth(signal, value, parts)))
        if idx not in marked:
            before.append(step)
        found.append(StepProcess(math.fsum(w for _, w in worth), tuple(values), tuple(worth)))
    size = math.fsum(abs(step.value) for step in found)
    alpha = min(1.0, settings.process_cap / size) if size > 0 else 1.0
    return ProcessReward(alpha, tuple(found), tuple(failed.values()))


def plugin_signals(settings: RewardSettings) -> list[str]:
    """The names of the signals in use whose functions are plug-ins."""
    return [
        name
        for name, signal in settings.process.items()
        if signal.weight > 0 and signal.source == SignalSource.FUNCTION and name not in SIGNALS
    ]


def _worth(signal: ProcessSignal, value: float, parts: int) -> float:
    return signal.weight * value / (parts if signal.per == SignalSpan.ROLLOUT else 1)


def _judged(value: float | Sequence[float] | None, idx: int, n: int) -> tuple[float | None, int]:
    """The verifier's value at a step, and how many steps share it. A number is paid once, on the last step. Extra entries of a list that is
    longer than the rollout are ignored."""
    if value is None:
        return None, n
    if isinstance(value, int | float):
        return (float(value) if idx == n - 1 else None), 1
    return (float(value[idx]) if idx < len(value) else None), n


def _value(
    name: str, step: RecordedStep, before: Sequence[RecordedStep], failed: dict[str, str]
) -> float | None:
    """A signal's value, or None if its function raises or leaves [−1, 1]: a plug-in's mistake costs its signal, not the group."""
    signal = function(name)
    try:
        value = float(signal(step, before))
    except Exception as error:  # noqa: BLE001 a function of others; roles.conclude counts and logs what it raises
        failed.setdefault(name, f"process signal {name} raised {type(error).__name__}: {error}"[:500])
        return None
    if not -1 <= value <= 1:  # also NaN
        failed.setdefault(name, f"process signal {name} gave {value}, it must lie in [-1, 1]")
        return None
    return value
