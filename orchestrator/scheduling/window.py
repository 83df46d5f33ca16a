"""The windowed FIFO: which ready groups may enter the open batch now.

Let i be the *head*: the oldest position neither taken nor resolved. Only ready groups at positions i … i+W−1 may be taken.
Inside the window any ready group may be taken at once, oldest first; outside it, none. Taken non-heads and resolved positions
leave holes that still occupy the window, so it moves only when the head is taken or resolved. W = 1 is strict FIFO.

Consequences, each a property in the tests: at most W−1 younger groups pass any group; at most N+W−2 groups are
consumed between a group's dispatch and its own consumption; with P groups per batch and N = (S+1)·P no group trains on a policy
more than S+⌈(W−1)/P⌉ batches younger than its policy at dispatch. A claim takes rows, not whole batches, so a
window smaller than a batch cannot deadlock.

This module keeps no state: the rows define window and head, so both survive any restart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.contracts.states import GroupState

UNTAKEN = frozenset({GroupState.DISPATCHED, GroupState.READY})


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue position as a claim sees it. Only `dispatched` and `ready` positions can be the head or be taken."""

    seq: int
    state: GroupState
    domain: str = ""


def rows_needed(window: int, wanted: int) -> int:
    """How many of the oldest dispatched or ready rows decide a claim of `wanted` groups: W + wanted.

    At most `wanted` ready rows precede the first unfinished row, and at most W rows are in the window that it pins.
    """
    return window + wanted


def head(open_rows: Iterable[QueueRow]) -> int | None:
    """The oldest position neither taken nor resolved; None if there is none."""
    return next((row.seq for row in open_rows if row.state in UNTAKEN), None)


def takeable(open_rows: Sequence[QueueRow], window: int, wanted: int) -> list[int]:
    """The positions that may be taken now, oldest first, at most `wanted` of them.

    `open_rows` ascend by seq and hold every dispatched or ready position from the head upwards, or at least the oldest
    `rows_needed(window, wanted)` of them. Rows in other states are ignored, so a caller may pass or omit the taken rows.
    Taking groups one by one, with the window computed again each time, gives the same list: a ready head is taken and the window
    moves to the next open position, until an unfinished head pins it.

    Group 7 is stuck, W = 4; 8 was taken before, 11 is beyond the window 7 … 10:

    >>> rows = [QueueRow(7, GroupState.DISPATCHED), QueueRow(8, GroupState.TAKEN), QueueRow(9, GroupState.READY),
    ...         QueueRow(10, GroupState.READY), QueueRow(11, GroupState.READY)]
    >>> takeable(rows, window=4, wanted=8)
    [9, 10]
    """
    assert window >= 1 and wanted >= 0
    assert all(a.seq < b.seq for a, b in pairwise(open_rows)), "rows must ascend by seq"
    taken: list[int] = []
    pinned: int | None = None  # the head that stays: the oldest unfinished position
    for row in open_rows:
        if len(taken) == wanted or (pinned is not None and row.seq >= pinned + window):
            break
        if row.state == GroupState.READY:
            taken.append(row.seq)
        elif row.state == GroupState.DISPATCHED and pinned is None:
            pinned = row.seq
    return taken


def floor_after(open_rows: Sequence[QueueRow], taken: Iterable[int]) -> int | None:
    """A new lower bound of the head once `taken` are taken: no open position is below it. None: keep the old bound.

    The bound saves the next claim from reading the history. It is a hint, never a decision. A rewind must lower it to the oldest
    position that it sets free.
    """
    consumed = set(taken)
    for row in open_rows:
        if row.state in UNTAKEN and row.seq not in consumed:
            return row.seq
    return open_rows[-1].seq + 1 if open_rows else None
