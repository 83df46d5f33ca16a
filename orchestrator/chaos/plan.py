"""Which faults, in which order: a pure function of the seed, so that a run can be resumed and replayed.

Faults come in blocks of twenty, each shuffled; victims are dealt from a deck that is shuffled whenever it is used up, so that even a short
run meets all of them. Lengths are seconds at time scale 1.

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

T = TypeVar("T")


class Kind(StrEnum):
    """What is done."""

    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP, after a while SIGCONT
    WIPE = "wipe"  # NATS dies and its JetStream store is deleted
    DUPLICATE = "duplicate"  # every message again, three times, under other ids and in another order
    REORDER = "reorder"  # messages reach their readers in another order
    STALL = "stall"  # a connection carries nothing
    CUT = "cut"  # connections end and none is made
    DELAY = "delay"  # every piece takes its time
    DISK = "disk"  # the disk of the checkpoints is full
    CLOCK = "clock"  # a process's clock is an hour off


PROCESSES: Final = (
    "orchestrator", "gateway", "runner", "verifier", "trainer", "rollout-server", "nats", "postgres",
)  # fmt: skip
SANDBOX: Final = "sandbox"
HARNESS: Final = "harness"
# Whose connection to what: each process has a relay of its own before each service.
LINKS: Final = (
    (HARNESS, "gateway-socket"),
    ("runner", "gateway"),
    ("gateway", "rollout-server"),
    *((process, service) for process in PROCESSES[:4] for service in ("postgres", "nats")),
    ("trainer", "postgres"),
)
BLOCK: Final = (
    *[Kind.KILL] * 10,
    *[Kind.STOP] * 3,
    Kind.WIPE,
    Kind.DUPLICATE,
    Kind.REORDER,
    "partition",
    "partition",
    Kind.DISK,
    Kind.CLOCK,
)
COUNTED: Final = {
    Kind.DUPLICATE: "copies of messages that NATS took",
    Kind.REORDER: "times that two messages or more went on in another order",
    Kind.STALL: "pieces that had to wait",
    Kind.CUT: "connections that were ended or refused",
    Kind.DELAY: "pieces that took longer",
    Kind.DISK: "writes of a checkpoint that failed",
    Kind.CLOCK: "looks of the victim at its shifted clock",
}
"""Faults that may pass by without hitting anything, and what is counted of each."""

HOUR_S: Final = 3600.0
DELAY_S: Final = 2.0  # of every piece


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long faults last, in seconds at time scale 1."""

    stop: float = 90.0
    partition: float = 60.0
    messages: float = 20.0  # that come again, or in another order
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


@dataclass(frozen=True, slots=True)
class Fault:
    """One of a run. `victim` is a process, `sandbox`, or whose connection to `service` suffers. `length_s` at time scale 1; 0 = at once.

    `pick` in [0, 1) chooses among what is only known then; `pause` is how many steps happen before it, beside those that all wait for.
    """

    index: int
    kind: Kind
    victim: str
    service: str = ""
    length_s: float = 0.0
    shift_s: float = 0.0
    pick: float = 0.0
    pause: int = 0

    @property
    def title(self) -> str:
        """For people: `stall runner-postgres`."""
        where = f"{self.victim}-{self.service}" if self.service else self.victim
        return f"{self.kind} {where}" + (f" {self.shift_s:+.0f} s" if self.shift_s else "")


class _Deck(Generic[T]):
    """Deals every card once, then shuffles again."""

    def __init__(self, random: Random, cards: Sequence[T]) -> None:
        self._random, self._cards = random, list(cards)
        self._left: list[T] = []

    def deal(self) -> T:
        if not self._left:
            self._left = self._random.sample(self._cards, len(self._cards))
        return self._left.pop()


def faults(seed: int, lengths: Lengths = USUAL) -> Iterator[Fault]:
    """The faults of a seed, without end. Their lengths change nothing else about them."""
    random = Random(f"chaos {seed}")
    killed = _Deck(random, (*PROCESSES, SANDBOX))
    stopped = _Deck(random, (*PROCESSES, SANDBOX))
    parted = _Deck(random, [(kind, link) for kind in (Kind.STALL, Kind.CUT, Kind.DELAY) for link in LINKS])
    shifted = _Deck(random, [(process, sign) for process in PROCESSES[:5] for sign in (1, -1)])
    kinds = _Deck(random, BLOCK)
    for index in itertools.count():
        kind, victim, service, length_s, shift_s = kinds.deal(), "nats", "", 0.0, 0.0
        match kind:
            case Kind.KILL:
                victim = killed.deal()
            case Kind.STOP:
                victim, length_s = stopped.deal(), lengths.stop
            case Kind.DUPLICATE | Kind.REORDER:
                length_s = lengths.messages
            case "partition":
                kind, (victim, service) = parted.deal()
                length_s = lengths.partition
            case Kind.DISK:
                victim, length_s = "trainer", lengths.disk
            case Kind.CLOCK:
                victim, sign = shifted.deal()
                length_s, shift_s = lengths.clock, sign * HOUR_S
        pick, pause = random.random(), random.randrange(20)
        yield Fault(index, Kind(kind), victim, service, length_s, shift_s, pick, pause)


def take(
    seed: int, kills: int, least: int = 0, without: Collection[Kind] = (), lengths: Lengths = USUAL
) -> list[Fault]:
    """As many faults as it takes until `kills` of them are kills and there are `least` of them. Those of the kinds `without` cannot be done
    here: they are left out, and others done in their place; every fault keeps its index."""
    found: list[Fault] = []
    for fault in faults(seed, lengths):
        if kills <= 0 and len(found) >= least:
            break
        if fault.kind not in without:
            found.append(fault)
            kills -= fault.kind is Kind.KILL
    return found


def between(
    seed: int, first: int, last: int, without: Collection[Kind] = (), lengths: Lengths = USUAL
) -> list[Fault]:
    """The faults `first` … `last` of a seed, but for the kinds `without`."""
    return [
        fault
        for fault in itertools.islice(faults(seed, lengths), first, last + 1)
        if fault.kind not in without
    ]
