"""Accounts for the seconds of a run's places: every second of every slot has exactly one name.

A place is something that can be at work: the rollout slots, the verification slots, the trainer, the rollout servers. Its whole is its slots times
the seconds of the run. Its parts (time at work) and its rests (time not at work) add up to the whole, except for the excess in `Leases.twice`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

from ops.lab.benchmarks.targets import quantile
from orchestrator.contracts.states import SlotPhase

GIVEN_UP = "attempts that reported nothing: killed, cancelled, lost"
OTHERS = "evaluations and recordings"
ROLLOUT = {
    SlotPhase.SESSION: "opening its session",
    SlotPhase.SANDBOX: "opening and closing its sandbox",
    SlotPhase.CHANGES: "what it changed",
    SlotPhase.SEAL: "seal",
    SlotPhase.OTHER: "between these",
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
        """Seconds of the interval from `start` to `end` that lie in the window.

        >>> Window(10, 20).overlap(5, 12), Window(10, 20).overlap(30, 40)
        (2, 0)
        """
        return max(0, min(end, self.end) - max(start, self.start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Seconds over all slots of a place. `parts`: at work, by activity; `rests`: not at work, by cause."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One lease of a rollout: from the moment when a slot was taken until its result was stored, or the lease was over (seconds since 1970).

    `spent`: seconds by phase, as its runner reported them. `generation`, `queue`, `gap`: sums over its steps. `tools`: seconds in which at least one
    tool ran. `generated`: seconds in which at least one completion was generated. `waited`: seconds in which at least one completion waited and none
    was generated. Both are derived from the times when replies were ready.
    """

    start: float
    until: float
    train: bool
    spent: Mapping[str, float] = field(default_factory=dict)
    generation: float = 0.0
    queue: float = 0.0
    gap: float = 0.0
    tools: float = 0.0
    generated: float | None = None
    waited: float | None = None

    @property
    def end(self) -> float:
        """When its slot was free again: a runner does not wait until its result is stored."""
        return self.start + sum(self.spent.values()) if self.spent else self.until

    def parts(self) -> dict[str, float]:
        """Its seconds by name; they add up to `end - start`. If the sums exceed the agent's time, completions overlapped: then intervals
        count, and the remaining overlap is scaled down.

        >>> spent = {"session": 1, "agent": 4, "seal": 1}
        >>> lease = Lease(start=0, until=9, train=True, spent=spent, generation=1, queue=1, gap=2, tools=1)
        >>> lease.parts()["starting and ending the agent"]
        0.0
        >>> Lease(start=0, until=9, train=True, spent={"agent": 4}, generation=6, gap=2).parts()["generation"]
        3.0
        >>> lease = Lease(start=0, until=9, train=True, spent={"agent": 6.2}, generation=6, queue=17, generated=6, waited=0.1)
        >>> lease.parts()["generation"], lease.parts()["waiting at the gateway"]
        (6, 0.1)
        """
        if not self.train:
            return {OTHERS: self.end - self.start}
        if not self.spent:
            return {GIVEN_UP: self.end - self.start}
        agent = self.spent.get(SlotPhase.AGENT, 0.0)
        generation, queue = self.generation, self.queue
        if generation + queue + self.gap > agent and self.generated is not None and self.waited is not None:
            generation, queue = min(generation, self.generated), min(queue, self.waited)
        inside = {
            "generation": generation,
            "waiting at the gateway": queue,
            "tools": self.tools,
            "agent between its calls": max(0.0, self.gap - self.tools),
        }
        known = sum(inside.values())
        share = min(1.0, agent / known) if known else 0.0
        found = {name: seconds if share == 1.0 else seconds * share for name, seconds in inside.items()}
        found["starting and ending the agent"] = max(0.0, agent - known)
        return found | {
            ROLLOUT[phase]: self.spent[phase]
            for phase in SlotPhase
            if phase in self.spent and phase in ROLLOUT
        }


@dataclass(frozen=True, slots=True)
class Leases:
    """The rollout slots. `twice`: slot seconds in which there were more leases than slots."""

    place: Place
    twice: float


def rollout_slots(
    leases: Sequence[Lease], queued: Sequence[tuple[float, float]], slots: int, window: Window
) -> Leases:
    """`queued`: the interval in which each rollout waited for a slot. A slot that is free while a rollout waits counts as `claim`."""
    parts: dict[str, float] = {}
    for lease in leases:
        duration = lease.end - lease.start
        share = window.overlap(lease.start, lease.end) / duration if duration > 0 else 0.0
        for name, seconds in lease.parts().items():
            parts[name] = parts.get(name, 0.0) + seconds * share
    claim, idle, twice = _sweep([(lease.start, lease.end) for lease in leases], queued, slots, window)
    rests = {"claim: a rollout is queued, a slot is free": claim, "idle: no rollout is queued": idle}
    return Leases(
        Place(name="rollout slots", slots=slots, seconds=window.seconds, parts=parts, rests=rests), twice
    )


def _sweep(
    held: Sequence[tuple[float, float]], queued: Sequence[tuple[float, float]], slots: int, window: Window
) -> tuple[float, float, float]:
    """Slot seconds: free while a rollout waits, free otherwise, held beyond `slots`.

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
    for at, busy_change, waiting_change in chain(sorted(changes), [(window.end, 0, 0)]):
        elapsed = window.overlap(before, at)
        free = max(0, slots - busy)
        claim += elapsed * min(free, waiting)
        idle += elapsed * max(0, free - waiting)
        twice += elapsed * max(0, busy - slots)
        busy, waiting, before = busy + busy_change, waiting + waiting_change, at
    return claim, idle, twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """How long one kind of thing waited, in seconds."""

    name: str
    count: int
    mean: float
    p50: float
    p95: float

    @classmethod
    def of(cls, name: str, seconds: Sequence[float]) -> "Wait":
        return cls(
            name=name,
            count=len(seconds),
            mean=fmean(seconds),
            p50=quantile(seconds, 0.5),
            p95=quantile(seconds, 0.95),
        )
