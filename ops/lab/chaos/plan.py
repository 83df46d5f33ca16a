"""Which faults, in which order: a pure function of the seed, so that a run can be resumed and replayed.

Faults come in blocks of twenty, each shuffled. Victims are dealt from a deck that is shuffled again each time it is used up, so that even a
short run hits all of them. Lengths are seconds at time scale 1.

>>> [fault.title for fault in take(7, 3)] == [fault.title for fault in take(7, 3)]
True
"""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from random import Random
from typing import Final, Generic, Self, TypeVar

from orchestrator.contracts.processes import WORKERS, ProcessRole

T = TypeVar("T")


class FaultKind(StrEnum):
    """The kind of a fault."""

    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP, after a while SIGCONT
    WIPE = "wipe"  # NATS dies and its JetStream store is deleted
    DUPLICATE = "duplicate"  # every message again, three times, under other ids and in another order
    REORDER = "reorder"  # messages reach their consumers in another order
    STALL = "stall"  # a connection carries nothing
    CUT = "cut"  # connections end and no new one is accepted
    DELAY = "delay"  # every piece of data is delayed
    DISK = "disk"  # the disk of the checkpoints is full
    CLOCK = "clock"  # a process's clock is an hour off


PROCESSES: Final = (
    ProcessRole.ORCHESTRATOR,
    ProcessRole.GATEWAY,
    *WORKERS,
    ProcessRole.TRAINER,
    ProcessRole.ROLLOUT_SERVER,
    ProcessRole.NATS,
    ProcessRole.POSTGRES,
)
SANDBOX: Final = "sandbox"
HARNESS: Final = "harness"
# (process, service) of each connection: each process has its own relay in front of each service.
LINKS: Final = (
    (HARNESS, "gateway-socket"),
    (ProcessRole.RUNNER, ProcessRole.GATEWAY),
    (ProcessRole.GATEWAY, ProcessRole.ROLLOUT_SERVER),
    *(
        (process, service)
        for process in PROCESSES[:4]
        for service in (ProcessRole.POSTGRES, ProcessRole.NATS)
    ),
    (ProcessRole.TRAINER, ProcessRole.POSTGRES),
)
BLOCK: Final = (
    *[FaultKind.KILL] * 10,
    *[FaultKind.STOP] * 3,
    FaultKind.WIPE,
    FaultKind.DUPLICATE,
    FaultKind.REORDER,
    "partition",
    "partition",
    FaultKind.DISK,
    FaultKind.CLOCK,
)
COUNTED: Final = {
    FaultKind.DUPLICATE: "copies of messages that NATS took",
    FaultKind.REORDER: "times that two messages or more went on in another order",
    FaultKind.STALL: "pieces that had to wait",
    FaultKind.CUT: "connections that were ended or refused",
    FaultKind.DELAY: "pieces that took longer",
    FaultKind.DISK: "writes of a checkpoint that failed",
    FaultKind.CLOCK: "looks of the victim at its shifted clock",
}
"""Faults that may end without hitting anything, and the events counted for each."""

HOUR_S: Final = 3600.0
DELAY_S: Final = 2.0  # of every piece of data


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long faults last, in seconds at time scale 1."""

    stop: float = 90.0
    partition: float = 60.0
    messages: float = 20.0  # duplicated or reordered
    disk: float = 60.0
    clock: float = 60.0

    @classmethod
    def of(cls, given: Sequence[str]) -> Self:
        """From words like `stop=120`. Raises ValueError.

        >>> Lengths.of(["stop=120"]).stop
        120.0
        """
        known = [field.name for field in fields(cls)]
        found = {}
        for word in given:
            name, _, seconds = word.partition("=")
            try:
                length = float(seconds)
            except ValueError:
                length = 0.0
            if name not in known or not 0 < length < math.inf:
                raise ValueError(
                    f"--length is like stop=120, of {', '.join(known)}, with seconds above 0: not {word!r}"
                )
            found[name] = length
        return cls(**found)


USUAL: Final = Lengths()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a run. `victim` is a process, `sandbox`, or the process whose connection to `service` is disturbed. `length_s`: at time scale 1;
    0 = at once.

    `pick` in [0, 1) chooses among victims known only at injection time. `pause`: steps before the fault, in addition to those before every fault.
    """

    index: int
    kind: FaultKind
    victim: str
    service: str = ""
    length_s: float = 0.0
    shift_s: float = 0.0
    pick: float = 0.0
    pause: int = 0

    @property
    def title(self) -> str:
        """For people: `stall runner-postgres`."""
        target = f"{self.victim}-{self.service}" if self.service else self.victim
        return f"{self.kind} {target}" + (f" {self.shift_s:+.0f} s" if self.shift_s else "")


class _Deck(Generic[T]):
    """Draws every card once, then shuffles again."""

    def __init__(self, random: Random, cards: Sequence[T]) -> None:
        self._random, self._cards = random, list(cards)
        self._left: list[T] = []

    def draw(self) -> T:
        if not self._left:
            self._left = self._random.sample(self._cards, len(self._cards))
        return self._left.pop()


def faults(seed: int, lengths: Lengths = USUAL) -> Iterator[Fault]:
    """The faults of a seed, an endless iterator. `lengths` changes only their lengths."""
    random = Random(f"chaos {seed}")
    killed = _Deck(random, (*PROCESSES, SANDBOX))
    stopped = _Deck(random, (*PROCESSES, SANDBOX))
    link_faults = _Deck(
        random, [(kind, link) for kind in (FaultKind.STALL, FaultKind.CUT, FaultKind.DELAY) for link in LINKS]
    )
    shifted = _Deck(random, [(process, sign) for process in PROCESSES[:5] for sign in (1, -1)])
    kinds = _Deck(random, BLOCK)
    for index in itertools.count():
        kind, victim, service, length_s, shift_s = kinds.draw(), "nats", "", 0.0, 0.0
        match kind:
            case FaultKind.KILL:
                victim = killed.draw()
            case FaultKind.STOP:
                victim, length_s = stopped.draw(), lengths.stop
            case FaultKind.DUPLICATE | FaultKind.REORDER:
                length_s = lengths.messages
            case "partition":
                kind, (victim, service) = link_faults.draw()
                length_s = lengths.partition
            case FaultKind.DISK:
                victim, length_s = "trainer", lengths.disk
            case FaultKind.CLOCK:
                victim, sign = shifted.draw()
                length_s, shift_s = lengths.clock, sign * HOUR_S
        pick, pause = random.random(), random.randrange(20)
        yield Fault(
            index=index,
            kind=FaultKind(kind),
            victim=victim,
            service=service,
            length_s=length_s,
            shift_s=shift_s,
            pick=pick,
            pause=pause,
        )


def take(
    seed: int, kills: int, least: int = 0, without: Collection[FaultKind] = (), lengths: Lengths = USUAL
) -> list[Fault]:
    """The shortest prefix with `kills` kills and at least `least` faults. Faults of the kinds `without` cannot be done here: they are
    left out, and later ones take their place. Every fault keeps its index."""
    found: list[Fault] = []
    for fault in faults(seed, lengths):
        if kills <= 0 and len(found) >= least:
            break
        if fault.kind not in without:
            found.append(fault)
            kills -= fault.kind is FaultKind.KILL
    return found


def between(
    seed: int, first: int, last: int, without: Collection[FaultKind] = (), lengths: Lengths = USUAL
) -> list[Fault]:
    """The faults `first` … `last` of a seed, except the kinds `without`."""
    return [
        fault
        for fault in itertools.islice(faults(seed, lengths), first, last + 1)
        if fault.kind not in without
    ]
