"""Every pair of states is a listed transition or refused; under any events in any order, no submission is lost or used twice."""

from enum import StrEnum
from itertools import product

import pytest

from orchestrator.contracts.states import (
    BATCH_TRANSITIONS,
    GROUP_TERMINAL,
    GROUP_TRANSITIONS,
    ROLLOUT_TERMINAL,
    ROLLOUT_TRANSITIONS,
    BatchState,
    GroupState,
    RolloutState,
    check,
)

GROUPS = """
accepted: dispatched filtered dead
dispatched: ready scored filtered dead
ready: taken filtered dispatched
taken: trained ready filtered
trained: ready
scored:
filtered:
dead:
"""
ROLLOUTS = """
waiting: queued lost
queued: running lost
running: reported queued lost
reported: finished queued lost
finished: verifying lost
verifying: verified finished lost
verified: finished
lost:
"""
BATCHES = """
open: closed voided
closed: closed committed voided
committed: voided
voided:
"""


@pytest.mark.parametrize(
    ("machine", "listed", "table"),
    [
        (GroupState, GROUPS, GROUP_TRANSITIONS),
        (RolloutState, ROLLOUTS, ROLLOUT_TRANSITIONS),
        (BatchState, BATCHES, BATCH_TRANSITIONS),
    ],
)
def test_every_pair_of_states_is_listed_or_refused(
    machine: type[StrEnum], listed: str, table: dict[StrEnum, frozenset[StrEnum]]
) -> None:
    lines = dict(line.split(":") for line in listed.strip().splitlines())
    allowed = {(machine(a), machine(b)) for a, after in lines.items() for b in after.split()}
    assert set(table) == set(machine)
    for before, after in product(machine, machine):
        if (before, after) in allowed:
            check(before, after)
        else:
            with pytest.raises(AssertionError, match="is not a transition"):
                check(before, after)


def test_states_of_different_machines_never_follow_each_other() -> None:
    machines = (GroupState, RolloutState, BatchState)
    for one, other in product(machines, machines):
        if one is not other:
            with pytest.raises(AssertionError, match="is not a transition"):
                check(next(iter(one)), next(iter(other)))


def test_terminal_states_lead_nowhere_but_through_a_rewind_or_a_rescore() -> None:
    assert {s for s in GroupState if not GROUP_TRANSITIONS[s]} | {GroupState.TRAINED} == GROUP_TERMINAL
    assert {s for s in RolloutState if not ROLLOUT_TRANSITIONS[s]} | {
        RolloutState.VERIFIED
    } == ROLLOUT_TERMINAL
    assert {s for s in BatchState if not BATCH_TRANSITIONS[s]} == {BatchState.VOIDED}


@pytest.mark.parametrize(
    ("start", "table", "terminal"),
    [
        (GroupState.ACCEPTED, GROUP_TRANSITIONS, GROUP_TERMINAL),
        (RolloutState.WAITING, ROLLOUT_TRANSITIONS, ROLLOUT_TERMINAL),
        (BatchState.OPEN, BATCH_TRANSITIONS, frozenset({BatchState.VOIDED})),
    ],
)
def test_every_state_is_reachable_and_can_reach_an_end(
    start: StrEnum, table: dict[StrEnum, frozenset[StrEnum]], terminal: frozenset[StrEnum]
) -> None:
    def reach(state: StrEnum) -> set[StrEnum]:
        seen, todo = {state}, [state]
        while todo:
            new = table[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    assert reach(start) == set(type(start))
    assert all(reach(state) & terminal for state in type(start))
