"""Attributes each moment of an attempt to the agent or the platform. Results are lengths of intervals, so concurrent calls never count twice.

| at this moment | it is |
|---|---|
| at least one completion is generated | the agent's |
| at least one tool runs | the agent's |
| neither, and at least one call is in flight | waiting: the platform's |
| no call is in flight | the agent's |

A call is in flight from its arrival until its client has the reply or leaves; a new large request also while the gateway prepares it. Only the
server's answer shows how it spent the time: in the server's queue or in generation. Until then the stretch is undecided and counts as neither.
`waiting` therefore never falls.

Example: a call arrives at 0 s, goes to a rollout server at 2 s and is answered at 9 s, after generation from 4 s to 9 s. It waited for 4 s (2 s in
the gateway, 2 s in the server's queue) and generated for 5 s.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Stretch = tuple[float, float]  # start, end: seconds of one monotonic clock
IntervalKind = Literal["flight", "generated", "undecided", "tool"]


@dataclass(frozen=True, slots=True)
class Totals:
    """Seconds. `waiting`: see the module. `undecided`: may still become waiting. `generation`: at least one completion was generated."""

    waiting: float = 0.0
    undecided: float = 0.0
    generation: float = 0.0


class Served:
    """Total time of completions with a known end and duration. Concurrent completions count once. A completion without an end counts in full.

    >>> served = Served()
    >>> for ended, seconds in ((10.0, 4.0), (11.0, 4.0), (0.0, 1.0)):
    ...     served.add(ended, seconds)
    >>> served.seconds
    6.0
    """

    def __init__(self) -> None:
        self._stretches: list[Stretch] = []
        self._elsewhere = 0.0
        self.seconds = 0.0

    def add(self, ended: float, seconds: float) -> None:
        """Add one completion. `ended`: seconds of one clock, 0: not known."""
        if ended:
            self._stretches.append((ended - seconds, ended))
        else:
            self._elsewhere += seconds
        self.seconds = self._elsewhere + covered(self._stretches)


class CallTime:
    """One call of an account. Times must not fall from one method to the next."""

    def __init__(self, account: "Account", at: float) -> None:
        self._account = account
        self.began = at
        # Start of the part of its flight that the account has not yet taken; None: its client has left.
        self.since: float | None = at
        self.undecided_since: float | None = None

    def requested(self, at: float) -> None:
        """The call is at a rollout server from now on."""
        assert self.undecided_since is None
        self.undecided_since = at
        self._account.settle(at)

    def answered(self, at: float, generated: Iterable[Stretch] = ()) -> None:
        """The server has answered. `generated`: the stretches of generation since `requested`. The rest was waiting, and the call waits from
        now on."""
        if self.undecided_since is not None:
            requested_at, self.undecided_since = self.undecided_since, None
            self._account.generated((max(requested_at, start), min(at, end)) for start, end in generated)
        self._account.settle(at)

    def left(self, at: float) -> None:
        """Its client has left. The call no longer waits; tokens that a server still generates count."""
        if self.since is not None:
            self._account.landed(self.since, at)
            self.since = None

    def over(self, at: float) -> None:
        """The call ends. Its undecided time counts as generated."""
        if self.undecided_since is not None:
            self.answered(at, [(self.undecided_since, at)])
        self.left(at)
        self._account.forget(self, at)


class Account:
    """The times of one attempt's calls and tools. Keeps stretches only from the oldest undecided call on."""

    def __init__(self) -> None:
        self._open: set[CallTime] = set()
        self._flights: list[Stretch] = []
        self._generated: list[Stretch] = []
        self._tools: list[Stretch] = []
        self._running = 0  # tools
        self._tool_since = 0.0
        self._settled = Totals()
        self._floor = float("-inf")  # everything before it is settled
        self._in_flight = 0
        self._idle_s, self._idle_since = 0.0, float("inf")

    def call(self, at: float) -> CallTime:
        """A call arrives and waits."""
        if self._in_flight == 0:
            self._idle_s += max(0.0, at - self._idle_since)
        self._in_flight += 1
        call = CallTime(self, at)
        self._open.add(call)
        return call

    def tool_began(self, at: float) -> None:
        """One more tool is running."""
        if self._running == 0:
            self._tool_since = at
        self._running += 1

    def tool_ended(self, at: float) -> None:
        """One tool fewer is running."""
        self._running -= 1
        if self._running == 0:
            self._tools.append((self._tool_since, at))
            self.settle(at)

    def totals(self, at: float) -> Totals:
        """The totals up to `at`."""
        flights = [(call.since, at) for call in self._open if call.since is not None]
        undecided = [(call.undecided_since, at) for call in self._open if call.undecided_since is not None]
        tools = [(self._tool_since, at)] if self._running else []
        found = _measured(
            [*self._flights, *flights], self._generated, [*self._tools, *tools], undecided, self._floor, at
        )
        return _sum(self._settled, found)

    def idle_s(self, at: float) -> float:
        """Seconds without a call in flight, counted from the end of the first call, or of the preparation of a large request if that is earlier.
        `replied` moves the start of the current idle stretch."""
        return self._idle_s + (max(0.0, at - self._idle_since) if self._in_flight == 0 else 0.0)

    def replied(self, at: float) -> None:
        """A client has its reply now. If no call is in flight, the idle stretch starts here."""
        if self._in_flight == 0:
            self._idle_since = at

    # ---- called by CallTime ----

    def generated(self, stretches: Iterable[Stretch]) -> None:
        """Add stretches of one call, none before the oldest undecided call."""
        self._generated += [(start, end) for start, end in stretches if start < end]

    def landed(self, since: float, at: float) -> None:
        """A call is no longer in flight."""
        if since < at:
            self._flights.append((since, at))
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle_since = at

    def forget(self, call: CallTime, at: float) -> None:
        """A call is over."""
        self._open.discard(call)
        self.settle(at)

    def settle(self, at: float) -> None:
        """Add up the time that no undecided call can change any more."""
        floor = min(
            (call.undecided_since for call in self._open if call.undecided_since is not None), default=at
        )
        if floor <= self._floor:
            return
        for call in self._open:
            if call.since is not None and call.since < floor:
                self._flights.append((call.since, floor))
                call.since = floor
        if self._running and self._tool_since < floor:
            self._tools.append((self._tool_since, floor))
            self._tool_since = floor
        found = _measured(self._flights, self._generated, self._tools, (), self._floor, floor)
        self._settled = _sum(self._settled, found)
        self._floor = floor
        for intervals in (self._flights, self._generated, self._tools):
            intervals[:] = [(max(start, floor), end) for start, end in intervals if end > floor]


def covered(stretches: Iterable[Stretch]) -> float:
    """Seconds that at least one stretch covers.

    >>> covered([(0, 2), (5, 6), (1, 3)])
    4.0
    """
    seconds, covered_to = 0.0, float("-inf")
    for start, end in sorted(stretches):
        if end > covered_to:
            seconds += end - max(start, covered_to)
            covered_to = end
    return seconds


def _sum(settled: Totals, more: Totals) -> Totals:
    return replace(
        more, waiting=settled.waiting + more.waiting, generation=settled.generation + more.generation
    )


def _measured(
    flights: Sequence[Stretch],
    generated: Sequence[Stretch],
    tools: Sequence[Stretch],
    undecided: Sequence[Stretch],
    start: float,
    end: float,
) -> Totals:
    """Totals of the time from `start` to `end`."""
    kinds: list[tuple[IntervalKind, Sequence[Stretch]]] = [
        ("flight", flights),
        ("generated", generated),
        ("tool", tools),
        ("undecided", undecided),
    ]
    changes: list[tuple[float, IntervalKind, int]] = []
    for kind, stretches in kinds:
        for a, b in stretches:
            if (first := max(a, start)) < (last := min(b, end)):
                changes += [(first, kind, 1), (last, kind, -1)]
    changes.sort(key=lambda change: change[0])
    count: dict[IntervalKind, int] = dict.fromkeys(("flight", "generated", "tool", "undecided"), 0)
    waiting = open_s = generation = previous = 0.0
    for at, kind, step in changes:
        elapsed = at - previous
        if count["generated"]:
            generation += elapsed
        elif count["flight"] and not count["tool"]:
            if count["undecided"]:
                open_s += elapsed
            else:
                waiting += elapsed
        count[kind] += step
        previous = at
    return Totals(waiting, open_s, generation)
