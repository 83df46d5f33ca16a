"""A run that found nothing because it did nothing fails, and says what it did not do."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from orchestrator.audit import Checked, Report
from orchestrator.audit.sandboxes import REMOVED
from orchestrator.audit.witness import GENERATED, RECEIVED
from orchestrator.chaos.gate import unmet
from orchestrator.chaos.inject import Gone, Injector, NoVictim
from orchestrator.chaos.links import Links
from orchestrator.chaos.plan import SANDBOX, Fault, take
from orchestrator.chaos.tally import Outcome
from orchestrator.embedded.identity import ProcessId
from orchestrator.home import Home

PLANNED = take(1, 5, 10)


def outcome(fault: Fault) -> Outcome:
    return Outcome(fault.index, fault.kind, fault.victim, fault.title, 1.0, True, 20, 0, 1.0, "")


DONE = [outcome(fault) for fault in PLANNED]


def report(received: int = 7, generated: int = 7, skipped: str = "") -> Report:
    checks = [
        Checked("I3", RECEIVED, received, 0, ()),
        Checked("I3", GENERATED, generated, 0, (), skipped),
        Checked("I5", REMOVED, 0, 0, ()),
    ]
    return Report("chaos", "ended", checks, 0.1)


def test_a_run_that_did_all_of_it_has_nothing_to_say() -> None:
    assert unmet(PLANNED, DONE, report()) == []
    few = [replace(DONE[0], in_flight=False), *DONE[1:]]
    commit = [replace(few[0], steps=3, commits=1), *few[1:]]
    assert unmet(PLANNED, commit, report()) == []


def test_faults_that_were_not_done_are_counted_and_the_first_is_named() -> None:
    [said] = unmet(PLANNED, DONE[:-2], report())
    assert said.startswith(f"{len(PLANNED) - 2} of {len(PLANNED)} planned faults were done")
    assert PLANNED[-2].title in said
    assert unmet(PLANNED, [], None) != []


def test_a_fault_without_a_victim_is_named() -> None:
    [said] = unmet(PLANNED, [replace(DONE[0], problem="no gateway within 30 s"), *DONE[1:]], report())
    assert DONE[0].title in said and "no gateway within 30 s" in said


def test_a_fault_that_came_too_early_is_named() -> None:
    [said] = unmet(PLANNED, [*DONE[:-1], replace(DONE[-1], steps=19)], report())
    assert DONE[-1].title in said and "19 steps and no commit" in said


def test_most_faults_hit_work_in_flight() -> None:
    idle = [replace(one, in_flight=index >= 3) for index, one in enumerate(DONE)]
    [said] = unmet(PLANNED, idle, report())
    assert said == f"{100 * (1 - 3 / len(DONE)):.0f} % of the faults hit work in flight: 80 % have to"


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (report(received=0), [RECEIVED]),
        (report(generated=0), [GENERATED]),
        (report(0, 0), [RECEIVED, GENERATED]),
        (report(skipped="no witness told"), [GENERATED]),
        (Report("chaos", "ended", [], 0.1), [REMOVED, RECEIVED, GENERATED]),
    ],
)
def test_an_audit_that_compared_nothing_with_the_ledger_proves_nothing(
    made: Report, names: list[str]
) -> None:
    said = unmet(PLANNED, DONE, made)
    assert len(said) == len(names) and all(name in one for name, one in zip(names, said, strict=True))


@pytest.mark.anyio
async def test_a_sandbox_that_ends_just_before_it_is_killed_is_replaced_and_nobody_at_all_is_said() -> None:
    fault = next(one for one in take(1, 20) if one.victim == SANDBOX)
    ended = 0

    class Racing(Injector):
        __slots__ = ()

        async def find(self, fault: Fault) -> list[ProcessId]:
            return []

        async def do(self, fault: Fault, on: list[ProcessId]) -> float:
            nonlocal ended
            ended -= 1
            if ended >= 0:
                raise Gone
            return 12.0

    injector = Racing(cast(Home, None), cast(Links, None), Path(), 20.0)
    ended = 2
    assert await injector.hurt(fault) == 12.0
    ended = 99
    with pytest.raises(NoVictim, match="ended just before"):
        await injector.hurt(fault)
