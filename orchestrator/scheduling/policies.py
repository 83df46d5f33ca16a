"""Queue policies behind one small interface, chosen by name.

A policy is a pure function of the rows, configured once. Third parties register a factory under the entry point group
`penstock.policies`; it is loaded when its name is asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator import plugins
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import GroupState
from orchestrator.scheduling.window import QueueRow, rows_needed, takeable, window_size


class Policy(Protocol):
    """Decides which ready groups enter the open batch."""

    def rows_needed(self, wanted: int) -> int | None:
        """How many of the oldest dispatched or ready rows `takeable` must see to be exact; None: all of them."""

    def takeable(self, open_rows: Sequence[QueueRow], wanted: int) -> list[int]:
        """Positions that may be taken now, in the order in which to take them, at most `wanted`; only ready rows of `open_rows`."""


PolicyFactory = Callable[[int, float], Policy]  # (N, window fraction) → policy


@dataclass(frozen=True, slots=True)
class Windowed:
    """Windowed FIFO with a window of `window` positions; 1 is strict FIFO."""

    window: int

    def rows_needed(self, wanted: int) -> int | None:
        return rows_needed(self.window, wanted)

    def takeable(self, open_rows: Sequence[QueueRow], wanted: int) -> list[int]:
        return takeable(open_rows, self.window, wanted)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Any ready group, oldest first: what a window over every open position does. Nothing bounds how often a group is passed.

    A window of W = N positions is greedy only until its head has been passed by W−1 younger groups, then it waits; this never does.
    """

    def rows_needed(self, wanted: int) -> int | None:
        return None

    def takeable(self, open_rows: Sequence[QueueRow], wanted: int) -> list[int]:
        return [row.seq for row in open_rows if row.state == GroupState.READY][:wanted]


def fifo(in_flight: int, fraction: float) -> Policy:
    """Strict dispatch order."""
    return Windowed(1)


def windowed(in_flight: int, fraction: float) -> Policy:
    """The default: W = max(1, ⌊f·N⌋)."""
    return Windowed(window_size(in_flight, fraction))


def greedy(in_flight: int, fraction: float) -> Policy:
    """Completion order."""
    return Greedy()


BUILT_IN: Mapping[str, PolicyFactory] = {"fifo": fifo, "windowed": windowed, "greedy": greedy}


def queue_policy(name: str, in_flight: int, fraction: float) -> Policy:
    """The policy called `name`, for N = `in_flight` groups and window fraction `fraction`.

    Raises ConfigurationError that lists the known names.
    """
    if name in BUILT_IN:
        return BUILT_IN[name](in_flight, fraction)
    registered = plugins.names("policies")
    if name not in registered:
        known = ", ".join(sorted({*BUILT_IN, *registered}))
        raise ConfigurationError(f"queue policy {name!r} is unknown; known: {known}")
    factory: PolicyFactory = plugins.load("policies", name)
    return factory(in_flight, fraction)
