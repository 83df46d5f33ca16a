"""What came of the faults: recoveries by component, work in flight, problems. Read back from the ledger, so that a resumed run has all of it."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.chaos.plan import Fault, Kind


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault, done. `recovery_s` from the fault (a kill) or its end (all others) to the first new progress of its victim; None: not
    measured, because nobody was hurt (`problem` says why). `steps` and `commits` happened between it and the recovery from the fault before.
    `did`, of the kinds in `plan.COUNTED`: how much there was of what is counted there; the gate wants some."""

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
    def of(cls, entry: Mapping[str, Any]) -> "Outcome":
        """The inverse of `line`."""
        return cls(**{name: entry[name] for name in cls.__dataclass_fields__ if name in entry})

    def line(self) -> dict[str, Any]:
        """For the ledger."""
        return {"done": True, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds."""

    count: int
    p50: float
    p95: float
    largest: float


def begun(fault: Fault, at: float) -> dict[str, Any]:
    """A line of the ledger before anything is done."""
    return {"done": False, "index": fault.index, "title": fault.title, "at": at}


def outcomes(entries: Iterable[Mapping[str, Any]]) -> list[Outcome]:
    """Of a ledger's lines: those that were done to their end, the newest of each index, in order."""
    found = {entry["index"]: Outcome.of(entry) for entry in entries if entry["done"]}
    return [found[index] for index in sorted(found)]


def spread(values: Sequence[float]) -> Spread:
    """The nearest-rank percentiles.

    >>> spread([3.0, 1.0, 2.0])
    Spread(count=3, p50=2.0, p95=3.0, largest=3.0)
    """
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Spread(len(ordered), rank(0.5), rank(0.95), ordered[-1])


def recoveries(done: Iterable[Outcome]) -> dict[str, Spread]:
    """By component."""
    seconds: dict[str, list[float]] = {}
    for outcome in done:
        if outcome.recovery_s is not None:
            seconds.setdefault(outcome.victim, []).append(outcome.recovery_s)
    return {victim: spread(values) for victim, values in sorted(seconds.items())}


def kills(done: Iterable[Outcome]) -> int:
    """How many were a kill -9; a deleted store is one of NATS, too."""
    return sum(outcome.kind in (Kind.KILL, Kind.WIPE) and not outcome.problem for outcome in done)


def by_kind(done: Iterable[Outcome]) -> dict[str, int]:
    """How many of each kind."""
    return dict(sorted(Counter(outcome.kind for outcome in done).items()))


def in_flight(done: Sequence[Outcome]) -> float:
    """The share of faults that hit work in flight."""
    return sum(outcome.in_flight for outcome in done) / max(1, len(done))
