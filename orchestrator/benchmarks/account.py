"""How the seconds of a run's places are added up: every second of every slot under exactly one name.

A place is something that can be at work: the rollout slots, the verification slots, the trainer, the rollout servers. Its whole is its slots times
the seconds of the run; its parts and its rests (what it did not work for) add up to that, or `Leases.twice` says by how much they do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

from orchestrator.benchmarks.bars import quantile
from orchestrator.contracts.events import PHASES

GIVEN_UP = "attempts that told nothing: killed, cancelled, lost"
OTHERS = "evaluations and recordings"
ROLLOUT = {
    "session": "opening its session",
    "sandbox": "opening and closing its sandbox",
    "changes": "what it changed",
    "seal": "seal",
    "other": "between these",
}


@dataclass(frozen=True, slots=True)
class Window:
    """From the first dispatch to the last commit, seconds since 1970."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def overlap(self, start: float, end: float) -> float:
        """Seconds of a stretch that lie in it.

        >>> Window(10, 20).overlap(5, 12), Window(10, 20).overlap(30, 40)
        (2, 0)
        """
        return max(0, min(end, self.end) - max(start, self.start))


@dataclass(frozen=True, slots=True)
class Place:
    """Seconds, over all its slots. `parts`: at work, by what for; `rests`: not at work, by why."""

    name: str
    slots: int
    seconds: float
    parts: Mapping[str, float]
    rests: Mapping[str, float]

    @property
    def whole(self) -> float:
        return self.slots * self.seconds

    @property
    def busy(self) -> float:
        return sum(self.parts.values())

    @property
    def utilisation(self) -> float:
        return self.busy / self.whole


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease of a rollout: from when a slot was taken until its result was in, or the lease was over (seconds since 1970). `spent`: what its
    runner told, by phase. `generation`, `queue`, `gap`, `tools`: sums over its steps and tool calls."""

    start: float
    until: float
    train: bool
    spent: Mapping[str, float] = field(default_factory=dict)
    generation: float = 0.0
    queue: float = 0.0
    gap: float = 0.0
    tools: float = 0.0

    @property
    def end(self) -> float:
        """When its slot was free again: a runner does not wait for its result to be taken in."""
        return self.start + sum(self.spent.values()) if self.spent else self.until

    def parts(self) -> dict[str, float]:
        """Its seconds by name; they add up to `end - start`. Completions that an agent asks for at once share the time that they overlap in.

        >>> Lease(0, 9, True, {"session": 1, "agent": 4, "seal": 1}, generation=1, queue=1, gap=2, tools=1).parts()["starting and ending the agent"]
        0.0
        >>> Lease(0, 9, True, {"agent": 4}, generation=6, gap=2).parts()["generation"]
        3.0
        """
        if not self.train:
            return {OTHERS: self.end - self.start}
        if not self.spent:
            return {GIVEN_UP: self.end - self.start}
        inside = {
            "generation": self.generation,
            "waiting at the gateway": self.queue,
            "tools": self.tools,
            "agent between its calls": max(0.0, self.gap - self.tools),
        }
        agent, named = self.spent.get("agent", 0.0), sum(inside.values())
        share = min(1.0, agent / named) if named else 0.0
        found = {name: seconds * share for name, seconds in inside.items()}
        found["starting and ending the agent"] = max(0.0, agent - named)
        return found | {
            ROLLOUT[phase]: self.spent[phase] for phase in PHASES if phase in self.spent and phase in ROLLOUT
        }


@dataclass(frozen=True, slots=True)
class Leases:
    """The rollout slots, and `twice`: seconds for which more leases than slots were counted."""

    place: Place
    twice: float


def rollout_slots(
    leases: Sequence[Lease], queued: Sequence[tuple[float, float]], slots: int, window: Window
) -> Leases:
    """`queued`: from when to when each rollout waited for a slot. A slot that is free while one waits is between two leases: that is `claim`."""
    parts: dict[str, float] = {}
    for lease in leases:
        whole = lease.end - lease.start
        share = window.overlap(lease.start, lease.end) / whole if whole > 0 else 0.0
        for name, seconds in lease.parts().items():
            parts[name] = parts.get(name, 0.0) + seconds * share
    claim, idle, twice = _sweep([(lease.start, lease.end) for lease in leases], queued, slots, window)
    rests = {"claim: a rollout is queued, a slot is free": claim, "idle: no rollout is queued": idle}
    return Leases(Place("rollout slots", slots, window.seconds, parts, rests), twice)


def _sweep(
    held: Sequence[tuple[float, float]], queued: Sequence[tuple[float, float]], slots: int, window: Window
) -> tuple[float, float, float]:
    """Slot seconds: free while somebody waits, free otherwise, held beyond `slots`.

    >>> _sweep([(0, 4), (2, 4)], [(0, 2), (0, 6)], 2, Window(0, 10))
    (4.0, 10.0, 0.0)
    """
    changes = chain(
        ((at, step, 0) for start, end in held if end > start for at, step in ((start, 1), (end, -1))),
        ((at, 0, step) for start, end in queued if end > start for at, step in ((start, 1), (end, -1))),
    )
    claim = idle = twice = 0.0
    busy = waiting = 0
    before = window.start
    for at, more_busy, more_waiting in chain(sorted(changes), [(window.end, 0, 0)]):
        took = window.overlap(before, at)
        free = max(0, slots - busy)
        claim += took * min(free, waiting)
        idle += took * max(0, free - waiting)
        twice += took * max(0, busy - slots)
        busy, waiting, before = busy + more_busy, waiting + more_waiting, at
    return claim, idle, twice


@dataclass(frozen=True, slots=True)
class Wait:
    """How long one kind of thing waited, in seconds."""

    name: str
    count: int
    mean: float
    p50: float
    p95: float

    @classmethod
    def of(cls, name: str, seconds: Sequence[float]) -> "Wait":
        return cls(name, len(seconds), fmean(seconds), quantile(seconds, 0.5), quantile(seconds, 0.95))
