"""The conditions that a demo must meet: it learned, or in the control it did not; nothing was lost, trained twice or damaged."""

import math
from dataclasses import dataclass

from ops.lab.demo.outcome import Results
from ops.lab.demo.phases import Evaluation

GAIN = 0.2  # of held-out success at temperature 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTarget:
    """One figure with its target. `interval`: 95 %, if the figure is a difference of shares."""

    name: str
    value: float
    interval: tuple[float, float] | None
    target: str
    holds: bool


def change(before: Evaluation, after: Evaluation) -> tuple[float, tuple[float, float]]:
    """The difference in success of two evaluations, after - before, with its 95 % interval; (0, (-1, 1)) if one of them has no verdict."""
    one, other = before.all, after.all
    if one is None or other is None:
        return 0.0, (-1.0, 1.0)
    interval = difference((one.low, one.success, one.high), (other.low, other.success, other.high))
    return other.success - one.success, interval


def difference(before: tuple[float, float, float], after: tuple[float, float, float]) -> tuple[float, float]:
    """Newcombe's interval of the difference of two independent shares, after - before (1998, method 10). Each share: (low, share, high), with its
    Wilson interval at the same level.

    >>> [round(x, 3) for x in difference((0.269, 0.33, 0.398), (0.191, 0.245, 0.309))]
    [-0.172, 0.003]
    """
    (low, p, high), (low_after, q, high_after) = before, after
    return q - p - math.hypot(q - low_after, high - p), q - p + math.hypot(high_after - q, p - low)


def bars(found: Results, *, control: bool) -> list[DemoTarget]:
    """The conditions and whether they hold. The control must be flat: the 95 % interval of the change contains 0, at temperature 1 and greedy."""
    gain, interval = change(found.before, found.after)
    greedy, greedy_interval = change(found.greedy_before, found.greedy_after)
    learned = (
        [
            _flat("success changes in the control", gain, interval),
            _flat("greedy success changes in the control", greedy, greedy_interval),
        ]
        if control
        else [
            DemoTarget(
                name="success rises",
                value=round(gain, 4),
                interval=_rounded(interval),
                target=f"at least {100 * GAIN:+.0f} points",
                holds=gain >= GAIN - 1e-9,
            )
        ]
    )
    counts = {
        "lost": found.run.lost,
        "trained twice": found.run.trained_twice,
        "violations": found.audit.violations,
    }
    return learned + [
        DemoTarget(name=name, value=value, interval=None, target="0", holds=value == 0)
        for name, value in counts.items()
    ]


def _flat(name: str, value: float, interval: tuple[float, float]) -> DemoTarget:
    low, high = interval
    return DemoTarget(
        name=name,
        value=round(value, 4),
        interval=_rounded(interval),
        target="0 lies in the interval",
        holds=low <= 0 <= high,
    )


def _rounded(interval: tuple[float, float]) -> tuple[float, float]:
    return round(interval[0], 4), round(interval[1], 4)
