"""The queue as a row of cells: one per position, oldest left, with the window drawn below it."""

from dataclasses import dataclass

from orchestrator.contracts.states import GroupState
from orchestrator.queries.queue import Position, Queue

LEGEND = "r ready   R running   w waits   t taken   . trained   x filtered   D dead   ^ head, - window"
BEFORE = 8  # positions shown before the head, if there is room


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """`cells`: a letter of LEGEND per position; `below`: the visible parts of the head and the window; `first`, `last`: positions."""

    cells: str
    below: str
    first: int
    last: int


def letter(position: Position) -> str:
    """The letter of a position: the state of its group, and for a dispatched group whether one of its rollouts runs."""
    match position.state:
        case GroupState.TRAINED | GroupState.SCORED:
            return "."
        case GroupState.TAKEN:
            return "t"
        case GroupState.READY:
            return "r"
        case GroupState.DISPATCHED:
            return "R" if position.running or position.over else "w"
        case GroupState.DEAD:
            return "D"
        case _:
            return "x"


def picture(queue: Queue, width: int) -> Picture:
    """At most `width` positions, starting a little before the head."""
    by_seq = {position.seq: position for position in queue.positions}
    head = queue.next_seq if queue.head is None else queue.head
    first = max(min(by_seq, default=head), head - BEFORE)
    last = min(queue.next_seq, first + width) - 1
    if last - first + 1 < width:  # room is left: start further back
        first = max(min(by_seq, default=first), last + 1 - width)
    cells = "".join(letter(by_seq[seq]) if seq in by_seq else " " for seq in range(first, last + 1))
    marks = []
    if queue.head is not None:
        end = min(queue.head + queue.window, first + width)
        marks = [
            "^" if seq == queue.head else "-" if queue.head < seq < end else " "
            for seq in range(first, max(end, first))
        ]
    return Picture(cells=cells, below="".join(marks).rstrip(), first=first, last=last)
