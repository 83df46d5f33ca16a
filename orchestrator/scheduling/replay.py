"""Replays a recorded history as the claims that the policy would have made.

This is the auditor's view of the window: it takes the history of a real run, and the pure policy judges every claim against
the records before it. It needs the history in commit order: every change that makes a group ready or resolved, and every take, must
write its history row while it holds the lock of the run's queue row.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from orchestrator.contracts.states import GroupState
from orchestrator.scheduling.queue_policies import QueuePolicy
from orchestrator.scheduling.window import UNTAKEN, QueueRow


@dataclass(frozen=True, slots=True)
class Transition:
    """A group with a seq entered `state`; `order` ascends in commit order (the history row's id)."""

    order: int
    seq: int
    state: GroupState


@dataclass(frozen=True, slots=True)
class Claim:
    """Consecutive takes of the history. `derived` are the positions that the policy takes there, `recorded` those taken; both ascend."""

    order: int
    recorded: tuple[int, ...]
    derived: tuple[int, ...]

    @property
    def agrees(self) -> bool:
        return self.recorded == self.derived


def replay(transitions: Iterable[Transition], policy: QueuePolicy) -> list[Claim]:
    """Derive every claim again. Each claim is judged against the recorded state before it, so a bad claim does not affect later ones.

    Consecutive takes are one claim: their number is read from the history, their positions are not. A rewind (trained or taken →
    ready) is a transition like any other.
    """
    return list(_claims(sorted(transitions, key=lambda t: t.order), policy))


def _claims(history: list[Transition], policy: QueuePolicy) -> Iterator[Claim]:
    untaken: dict[int, QueueRow] = {}
    for takes, run in groupby(history, key=lambda t: t.state == GroupState.TAKEN):
        events = list(run)
        if takes:
            rows = [untaken[seq] for seq in sorted(untaken)]
            yield Claim(
                events[0].order,
                tuple(sorted(event.seq for event in events)),
                tuple(sorted(policy.takeable(rows, len(events)))),
            )
        for event in events:
            if event.state in UNTAKEN:
                untaken[event.seq] = QueueRow(event.seq, event.state)
            else:
                untaken.pop(event.seq, None)
