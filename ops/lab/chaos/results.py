"""The outcomes of the faults: recoveries by component, work in flight, problems. They are read from the ledger, so a resumed run has them all."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ops.lab.chaos.plan import Fault, FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOutcome:
    """One fault that was done. `recovery_s`: from the fault (a kill) or its end (all others) to the first new progress of its victim; None: not
    measured, because there was no victim (`problem` gives the reason). `steps` and `commits`: since the recovery from the fault before.
    `did`, for the kinds in `plan.COUNTED`: the number of events counted there; the gate requires at least one."""

    index: int
    kind: str
    victim: str
    title: str
    at: float
    in_flight: bool
    steps: int
    commits: int
    recovery_s: float | None
    problem: str
    did: int | None = None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "FaultOutcome":
        """The inverse of `line`."""
        return cls(**{name: entry[name] for name in cls.__dataclass_fields__ if name in entry})

    def line(self) -> dict[str, Any]:
        """For the ledger."""
        return {"done": True, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Seconds."""

    count: int
    p50: float
    p95: float
    largest: float


def started(fault: Fault, at: float) -> dict[str, Any]:
    """A line of the ledger before anything is done."""
    return {"done": False, "index": fault.index, "title": fault.title, "at": at}


def outcomes(entries: Iterable[Mapping[str, Any]]) -> list[FaultOutcome]:
    """The completed faults in a ledger's lines, the newest of each index, by index."""
    found = {entry["index"]: FaultOutcome.of(entry) for entry in entries if entry["done"]}
    return [found[index] for index in sorted(found)]


def spread(values: Sequence[float]) -> Spread:
    """The nearest-rank percentiles.

    >>> spread([3.0, 1.0, 2.0])
    Spread(count=3, p50=2.0, p95=3.0, largest=3.0)
    """
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Spread(count=len(ordered), p50=rank(0.5), p95=rank(0.95), largest=ordered[-1])


def recoveries(done: Iterable[FaultOutcome]) -> dict[str, Spread]:
    """By component."""
    seconds: dict[str, list[float]] = {}
    for outcome in done:
        if outcome.recovery_s is not None:
            seconds.setdefault(outcome.victim, []).append(outcome.recovery_s)
    return {victim: spread(values) for victim, values in sorted(seconds.items())}


def kills(done: Iterable[FaultOutcome]) -> int:
    """How many were a kill -9. Wiping the store of NATS includes one."""
    return sum(outcome.kind in (FaultKind.KILL, FaultKind.WIPE) and not outcome.problem for outcome in done)


def by_kind(done: Iterable[FaultOutcome]) -> dict[str, int]:
    """How many of each kind."""
    return dict(sorted(Counter(outcome.kind for outcome in done).items()))


def in_flight(done: Sequence[FaultOutcome]) -> float:
    """The share of faults that hit work in flight."""
    return sum(outcome.in_flight for outcome in done) / max(1, len(done))
