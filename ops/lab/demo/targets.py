"""The conditions that a demo must meet: it learned, or in the control it did not; nothing was lost, trained twice or damaged."""

from dataclasses import dataclass

from ops.lab.demo.outcome import Results
from ops.lab.demo.phases import Evaluation
from orchestrator.queries.evaluations import difference

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
    """The difference in success of two evaluations, after - before, with its 95 % interval."""
    (ok, n), (ok_after, n_after) = before.total, after.total
    return ok_after / max(1, n_after) - ok / max(1, n), difference(ok, n, ok_after, n_after)


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
