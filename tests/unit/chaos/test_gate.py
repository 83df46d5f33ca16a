"""A run that found nothing because it did nothing fails, and says what it did not do."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from orchestrator.audit import Checked, Report
from orchestrator.audit.sandboxes import REMOVED
from orchestrator.audit.witness import GENERATED, RECEIVED
from orchestrator.chaos import disk, inject, victims
from orchestrator.chaos.gate import unmet
from orchestrator.chaos.inject import Gone, Hurt, Injector, NoVictim
from orchestrator.chaos.links import Links
from orchestrator.chaos.plan import COUNTED, SANDBOX, Fault, Kind, take
from orchestrator.chaos.proxy import Proxy
from orchestrator.chaos.relay import Relay
from orchestrator.chaos.tally import Outcome
from orchestrator.config import Config
from orchestrator.embedded.identity import ProcessId
from orchestrator.home import Home

PATIENCE_S = 20.0
PLANNED = take(1, 5, 10)


def outcome(fault: Fault) -> Outcome:
    did = 3 if fault.kind in COUNTED else None
    return Outcome(fault.index, fault.kind, fault.victim, fault.title, 1.0, True, 20, 0, 1.0, "", did)


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


@pytest.mark.parametrize("did", [0, None])
@pytest.mark.parametrize(
    "kind", [Kind.DUPLICATE, Kind.REORDER, Kind.STALL, Kind.CUT, Kind.DELAY, Kind.DISK, Kind.CLOCK]
)
def test_messages_links_disks_and_clocks_that_a_fault_did_nothing_to_are_named(
    kind: Kind, did: int | None
) -> None:
    empty = next(one for one in take(1, 99) if one.kind is kind)
    planned = [*PLANNED[:-1], empty]
    done = [*DONE[:-1], replace(outcome(empty), did=did)]
    [said] = unmet(planned, done, report())
    assert said == f"fault {empty.index} ({empty.title}) did nothing: there were no {COUNTED[kind]}"
    assert unmet(planned, [*DONE[:-1], outcome(empty)], report()) == []


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

        async def do(self, fault: Fault, on: list[ProcessId]) -> Hurt:
            nonlocal ended
            ended -= 1
            if ended >= 0:
                raise Gone
            return Hurt(12.0)

    injector = Racing(cast(Home, None), cast(Links, None), Path(), 20.0)
    ended = 2
    assert await injector.hurt(fault) == Hurt(12.0)
    ended = 99
    with pytest.raises(NoVictim, match="ended just before"):
        await injector.hurt(fault)


class Place:
    """A home."""

    layout = None

    def connected(self) -> Config:
        return Config()


@pytest.mark.anyio
async def test_what_copies_shuffles_and_looks_at_a_clock_there_were_is_counted_of_each_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wire:
        """A relay that is asked to shuffle, or else, and has done so twice when it was."""

        shuffles, met = 5, 7

        def part(self, kind: Kind, *, delay_s: float, seed: int) -> None:
            if kind is Kind.REORDER:
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
    injector = Injector(cast(Home, Place()), links, tmp_path, 1.0)
    me = ProcessId.mine()

    async def did(kind: Kind) -> int | None:
        return (await injector.do(Fault(0, kind, "runner", "nats", length_s=0.05, shift_s=60.0), [me])).did

    assert (await did(Kind.DUPLICATE), await did(Kind.REORDER)) == (9, 2)
    assert [await did(kind) for kind in (Kind.STALL, Kind.CUT, Kind.DELAY)] == [3, 3, 3]
    seen = tmp_path / "runner.seen"
    seen.write_text(f"{me.pid}\n")  # of a fault before

    async def look() -> None:
        """Another process looks, then twice the victim."""
        while not (tmp_path / "runner").exists():
            await anyio.sleep(0.005)
        seen.write_text(f"1\n{me.pid}\n{me.pid}\n")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        assert await did(Kind.CLOCK) == 2
    assert not (tmp_path / "runner").exists()
    monkeypatch.setattr(inject, "FIND_S", 0.05)
    assert await did(Kind.CLOCK) == 0


@pytest.mark.anyio
async def test_a_full_disk_lasts_until_a_checkpoint_met_it_and_of_what_was_said_before_nothing_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "trainer.log"
    failed = json.dumps({"event": "checkpoint.failed", "level": "error"}) + "\n"
    log.write_text(failed)

    def filled(place: Path) -> None:
        (place / disk.BALLAST).touch()

    monkeypatch.setattr(disk, "fill", filled)  # a disk that can be full is root's
    home = SimpleNamespace(policies=tmp_path, layout=SimpleNamespace(logs=tmp_path))
    injector = Injector(cast(Home, home), cast(Links, None), tmp_path, 1.0)

    async def writes() -> None:
        while not (tmp_path / disk.BALLAST).exists():
            await anyio.sleep(0.005)
        with log.open("a") as lines:
            lines.write(f'{{"event": "batch.committed"}}\n{failed}')

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writes)
        with anyio.fail_after(PATIENCE_S):
            hurt = await injector.do(Fault(0, Kind.DISK, "trainer", length_s=0.02), [ProcessId.mine()])
    assert hurt.did == 1 and not (tmp_path / disk.BALLAST).exists()
    monkeypatch.setattr(inject, "FIND_S", 0.05)
    assert (await injector.do(Fault(0, Kind.DISK, "trainer", length_s=0.02), [ProcessId.mine()])).did == 0


@pytest.mark.anyio
async def test_of_a_sandbox_that_is_stopped_all_its_processes_are_and_one_that_ended_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']).wait()"
    async with await anyio.open_process([sys.executable, "-c", code]) as outermost:
        root = ProcessId.of(outermost.pid)
        try:
            with anyio.fail_after(PATIENCE_S):
                while len(victims.family(root)) < 2:
                    await anyio.sleep(0.005)
            monkeypatch.setattr(victims, "living", lambda layout, name: ProcessId.mine())
            monkeypatch.setattr(victims, "sandboxes", lambda runner: [root])
            injector = Injector(cast(Home, Place()), cast(Links, None), tmp_path, 1.0)
            fault = Fault(0, Kind.STOP, SANDBOX, length_s=0.5)
            on = await injector.find(fault)
            assert on == victims.family(root) and len(on) == 2
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(injector.do, fault, on)
                with anyio.fail_after(PATIENCE_S):
                    while [victims._stat(one.pid).rpartition(")")[2].split()[0] for one in on] != ["T", "T"]:
                        await anyio.sleep(0.005)
            assert "T" not in [victims._stat(one.pid).rpartition(")")[2].split()[0] for one in on]
            assert await injector.find(Fault(0, Kind.KILL, SANDBOX)) == [root]
        finally:
            victims.send(victims.family(root), signal.SIGKILL)
    with anyio.fail_after(
        PATIENCE_S
    ):  # a signal is heard, and whoever is an orphan then buried, a moment later
        while any(one.alive for one in on):
            await anyio.sleep(0.005)
    with pytest.raises(Gone):
        await injector.do(fault, on)
