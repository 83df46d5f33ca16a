"""A run that found nothing because it did nothing fails, and reports which checks were not exercised."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from ops.lab.chaos import disk, inject, victims
from ops.lab.chaos.gate import unmet
from ops.lab.chaos.inject import (
    Gone,
    Hurt,
    Injector,
    NoVictim,
)
from ops.lab.chaos.links import Links
from ops.lab.chaos.plan import (
    COUNTED,
    SANDBOX,
    Fault,
    FaultKind,
    take,
)
from ops.lab.chaos.proxy import Proxy
from ops.lab.chaos.relay import Relay
from ops.lab.chaos.results import FaultOutcome
from orchestrator.audit import Checked, Report
from orchestrator.audit.i3_external_record import GENERATED, RECEIVED
from orchestrator.audit.i5_sandboxes import REMOVED
from orchestrator.contracts.states import RunState
from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.home import Home
from orchestrator.settings.config import Config, ServicesSection
from tests.waiting import eventually

PATIENCE_S = 20.0
PLANNED = take(1, 5, 10)


def outcome(fault: Fault) -> FaultOutcome:
    did = 3 if fault.kind in COUNTED else None
    return FaultOutcome(
        index=fault.index,
        kind=fault.kind,
        victim=fault.victim,
        title=fault.title,
        at=1.0,
        in_flight=True,
        steps=20,
        commits=0,
        recovery_s=1.0,
        problem="",
        did=did,
    )


DONE = [outcome(fault) for fault in PLANNED]


def report(received: int = 7, generated: int = 7, skipped: str = "") -> Report:
    checks = [
        Checked(invariant="I3", name=RECEIVED, examined=received, found=0, violations=()),
        Checked(invariant="I3", name=GENERATED, examined=generated, found=0, violations=(), skipped=skipped),
        Checked(invariant="I5", name=REMOVED, examined=0, found=0, violations=()),
    ]
    return Report(run="chaos", state=RunState.ENDED, checks=checks, seconds=0.1)


def test_a_run_that_did_all_of_it_has_nothing_to_say() -> None:
    assert unmet(PLANNED, DONE, report()) == []
    few = [replace(DONE[0], in_flight=False), *DONE[1:]]
    commit = [replace(few[0], steps=3, commits=1), *few[1:]]
    assert unmet(PLANNED, commit, report()) == []


def test_faults_that_were_not_done_are_counted_and_the_first_is_named() -> None:
    [problem] = unmet(PLANNED, DONE[:-2], report())
    assert problem.startswith(f"{len(PLANNED) - 2} of {len(PLANNED)} planned faults were done")
    assert PLANNED[-2].title in problem
    assert unmet(PLANNED, [], None) != []


def test_a_fault_without_a_victim_is_named() -> None:
    [problem] = unmet(PLANNED, [replace(DONE[0], problem="no gateway within 30 s"), *DONE[1:]], report())
    assert DONE[0].title in problem and "no gateway within 30 s" in problem


@pytest.mark.parametrize("did", [0, None])
@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.DUPLICATE,
        FaultKind.REORDER,
        FaultKind.STALL,
        FaultKind.CUT,
        FaultKind.DELAY,
        FaultKind.DISK,
        FaultKind.CLOCK,
    ],
)
def test_messages_links_disks_and_clocks_that_a_fault_did_nothing_to_are_named(
    kind: FaultKind, did: int | None
) -> None:
    empty = next(one for one in take(1, 99) if one.kind is kind)
    planned = [*PLANNED[:-1], empty]
    done = [*DONE[:-1], replace(outcome(empty), did=did)]
    [problem] = unmet(planned, done, report())
    assert problem == f"fault {empty.index} ({empty.title}) did nothing: there were no {COUNTED[kind]}"
    assert unmet(planned, [*DONE[:-1], outcome(empty)], report()) == []


def test_a_fault_that_came_too_early_is_named() -> None:
    [problem] = unmet(PLANNED, [*DONE[:-1], replace(DONE[-1], steps=19)], report())
    assert DONE[-1].title in problem and "19 steps and no commit" in problem


def test_most_faults_hit_work_in_flight() -> None:
    idle = [replace(one, in_flight=index >= 3) for index, one in enumerate(DONE)]
    [problem] = unmet(PLANNED, idle, report())
    assert problem == f"{100 * (1 - 3 / len(DONE)):.0f} % of the faults hit work in flight: 80 % have to"


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (report(received=0), [RECEIVED]),
        (report(generated=0), [GENERATED]),
        (report(0, 0), [RECEIVED, GENERATED]),
        (report(skipped="no witness reported"), [GENERATED]),
        (Report(run="chaos", state=RunState.ENDED, checks=[], seconds=0.1), [REMOVED, RECEIVED, GENERATED]),
    ],
)
def test_an_audit_that_compared_nothing_with_the_ledger_proves_nothing(
    made: Report, names: list[str]
) -> None:
    problems = unmet(PLANNED, DONE, made)
    assert len(problems) == len(names) and all(name in one for name, one in zip(names, problems, strict=True))


@pytest.mark.anyio
async def test_a_sandbox_that_ends_before_it_is_killed_is_replaced_and_the_lack_of_any_is_reported() -> None:
    fault = next(one for one in take(1, 20) if one.victim == SANDBOX)
    ended = 0

    class Racing(Injector):
        __slots__ = ()

        async def find(self, fault: Fault) -> list[ProcessId]:
            return []

        async def do(self, fault: Fault, on: list[ProcessId]) -> Hurt:
            nonlocal ended
            ended -= 1
            if ended >= 0:
                raise Gone
            return Hurt(12.0)

    injector = Racing(home=cast(Home, None), links=cast(Links, None), clocks=Path(), scale=20.0)
    ended = 2
    assert await injector.hurt(fault) == Hurt(12.0)
    ended = 99
    with pytest.raises(NoVictim, match="ended just before"):
        await injector.hurt(fault)


class Place:
    """A run's home."""

    layout = None

    def connected(self) -> Config:
        return Config(services=ServicesSection(nats_url="nats://127.0.0.1:4222"))


@pytest.mark.anyio
async def test_what_copies_shuffles_and_looks_at_a_clock_there_were_is_counted_of_each_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wire:
        """A relay that counts two shuffles for each reordering and three events for each other fault."""

        shuffles, met = 5, 7

        def part(self, kind: FaultKind, *, delay_s: float, seed: int) -> None:
            if kind is FaultKind.REORDER:
                self.shuffles += 2
            else:
                self.met += 3

        def pass_on(self) -> None: ...

    class Copies:
        copies = 9

        def __init__(self, url: str, random: object) -> None: ...

        async def run(self) -> None: ...

    monkeypatch.setattr(inject, "Echo", Copies)
    links = Links({("runner", "nats"): cast(Relay, Wire())}, cast(Proxy, None), tmp_path)
    injector = Injector(home=cast(Home, Place()), links=links, clocks=tmp_path, scale=1.0)
    me = ProcessId.mine()

    async def did(kind: FaultKind) -> int | None:
        return (
            await injector.do(
                Fault(index=0, kind=kind, victim="runner", service="nats", length_s=0.05, shift_s=60.0), [me]
            )
        ).did

    assert (await did(FaultKind.DUPLICATE), await did(FaultKind.REORDER)) == (9, 2)
    assert [await did(kind) for kind in (FaultKind.STALL, FaultKind.CUT, FaultKind.DELAY)] == [3, 3, 3]
    seen = tmp_path / "runner.seen"
    seen.write_text(f"{me.pid}\n")  # of a fault before

    async def look() -> None:
        """Another process looks, then twice the victim."""
        await eventually(lambda: (tmp_path / "runner").exists())
        seen.write_text(f"1\n{me.pid}\n{me.pid}\n")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        assert await did(FaultKind.CLOCK) == 2
    assert not (tmp_path / "runner").exists()
    monkeypatch.setattr(inject, "FIND_S", 0.05)
    assert await did(FaultKind.CLOCK) == 0


@pytest.mark.anyio
async def test_a_full_disk_lasts_until_a_checkpoint_fails_on_it_and_earlier_log_lines_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "trainer.log"
    failed = json.dumps({"event": "checkpoint.failed", "level": "error"}) + "\n"
    log.write_text(failed)

    def filled(place: Path) -> None:
        (place / disk.BALLAST).touch()

    monkeypatch.setattr(disk, "fill", filled)  # only root can fill a disk
    home = SimpleNamespace(policies=tmp_path, layout=SimpleNamespace(logs=tmp_path))
    injector = Injector(home=cast(Home, home), links=cast(Links, None), clocks=tmp_path, scale=1.0)

    async def writes() -> None:
        await eventually(lambda: (tmp_path / disk.BALLAST).exists())
        with log.open("a") as lines:
            lines.write(f'{{"event": "batch.committed"}}\n{failed}')

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writes)
        with anyio.fail_after(PATIENCE_S):
            hurt = await injector.do(
                Fault(index=0, kind=FaultKind.DISK, victim="trainer", length_s=0.02), [ProcessId.mine()]
            )
    assert hurt.did == 1 and not (tmp_path / disk.BALLAST).exists()
    monkeypatch.setattr(inject, "FIND_S", 0.05)
    assert (
        await injector.do(
            Fault(index=0, kind=FaultKind.DISK, victim="trainer", length_s=0.02), [ProcessId.mine()]
        )
    ).did == 0


@pytest.mark.anyio
async def test_of_a_sandbox_that_is_stopped_all_its_processes_are_and_one_that_ended_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']).wait()"
    async with await anyio.open_process([sys.executable, "-c", code]) as outermost:
        root = ProcessId.of(outermost.pid)
        try:
            await eventually(lambda: len(victims.family(root)) >= 2, within_s=PATIENCE_S)
            monkeypatch.setattr(victims, "living", lambda layout, name: ProcessId.mine())
            monkeypatch.setattr(victims, "sandboxes", lambda runner: [root])
            injector = Injector(home=cast(Home, Place()), links=cast(Links, None), clocks=tmp_path, scale=1.0)
            fault = Fault(index=0, kind=FaultKind.STOP, victim=SANDBOX, length_s=0.5)
            on = await injector.find(fault)
            assert on == victims.family(root) and len(on) == 2
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(injector.do, fault, on)
                await eventually(
                    lambda: (
                        [victims._stat(one.pid).rpartition(")")[2].split()[0] for one in on] == ["T", "T"]
                    ),
                    within_s=PATIENCE_S,
                )
            assert "T" not in [victims._stat(one.pid).rpartition(")")[2].split()[0] for one in on]
            assert await injector.find(Fault(index=0, kind=FaultKind.KILL, victim=SANDBOX)) == [root]
        finally:
            victims.send(victims.family(root), signal.SIGKILL)
    # the signals, and the reaping of orphans, take effect a moment later
    await eventually(lambda: not any(one.alive for one in on), within_s=PATIENCE_S)
    with pytest.raises(Gone):
        await injector.do(fault, on)
