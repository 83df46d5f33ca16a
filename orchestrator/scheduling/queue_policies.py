"""Queue policies behind one small interface, chosen by name.

A policy is a pure function of the rows, configured once. Third parties register a factory under the entry point group
`penstock.policies`; it is loaded when its name is requested.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.queue_window import FIFO, GREEDY, WINDOWED, window_of
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import GroupState
from orchestrator.runtime import plugins
from orchestrator.scheduling.window import QueueRow, rows_needed, takeable


class QueuePolicy(Protocol):
    """Decides which ready groups enter the open batch."""

    def rows_needed(self, wanted: int) -> int | None:
        """How many of the oldest dispatched or ready rows `takeable` must see to be exact; None: all of them."""

    def takeable(self, open_rows: Sequence[QueueRow], wanted: int) -> list[int]:
        """Positions that may be taken now, in the order in which to take them, at most `wanted`; only ready rows of `open_rows`."""


QueuePolicyFactory = Callable[[int, float], QueuePolicy]
"""Makes the policy of a run, for N = `capacity` groups and the window fraction."""


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
    """Any ready group, oldest first: the same as a window over every open position. How often a group is passed is not bounded.

    A window of W = N positions is greedy only until W−1 younger groups have passed its head; then it waits. This policy never waits.
    """

    def rows_needed(self, wanted: int) -> int | None:
        return None

    def takeable(self, open_rows: Sequence[QueueRow], wanted: int) -> list[int]:
        return [row.seq for row in open_rows if row.state == GroupState.READY][:wanted]


def fifo(capacity: int, fraction: float) -> QueuePolicy:
    """Strict dispatch order."""
    return Windowed(window_of(FIFO, capacity, fraction))


def windowed(capacity: int, fraction: float) -> QueuePolicy:
    """The default: W = max(1, ⌊f·N⌋)."""
    return Windowed(window_of(WINDOWED, capacity, fraction))


def greedy(capacity: int, fraction: float) -> QueuePolicy:
    """Completion order."""
    return Greedy()


BUILT_IN: Mapping[str, QueuePolicyFactory] = {FIFO: fifo, WINDOWED: windowed, GREEDY: greedy}


def queue_policy(name: str, capacity: int, fraction: float) -> QueuePolicy:
    """The policy called `name`, for N = `capacity` groups and window fraction `fraction`.

    Raises ConfigurationError with the list of known names.
    """
    if name in BUILT_IN:
        return BUILT_IN[name](capacity, fraction)
    registered = plugins.names("policies")
    if name not in registered:
        available = ", ".join(sorted({*BUILT_IN, *registered}))
        raise ConfigurationError(f"queue policy {quoted(name)} is unknown; known: {available}")
    factory: QueuePolicyFactory = plugins.load("policies", name)
    return factory(capacity, fraction)
