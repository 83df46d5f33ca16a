"""I5 on this machine: the leftovers of a dead worker of the run are gone within the time to live, or named."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from orchestrator.audit import Checked
from orchestrator.audit import i5_sandboxes as audited
from orchestrator.audit.snapshot import Outside
from sandboxes.owner import Owner, Record, record_path, records
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
MINE, OTHERS = "host:/runs/first/.penstock:", "host:/runs/first2/.penstock:"
ALIVE = frozenset({"runner"})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited, "SLACK_S", 0.0)


def left(root: Path, name: str, worker: str, *, dead: bool = True, boot: str = "") -> None:
    me = Owner.current()
    owner = replace(me, start=me.start + dead, boot=boot or me.boot)
    Record(id=name, owner=owner, cgroups=(), uid=-1, worker=worker).write(root)


async def check(root: Path, alive: frozenset[str] | None = ALIVE, ttl_s: float = 0.2) -> Checked:
    return await audited.sandboxes(Outside(alive=alive, sandboxes=root, workers=MINE), ttl_s)


async def test_what_a_dead_worker_left_is_named_once_its_time_to_live_is_over(tmp_path: Path) -> None:
    left(tmp_path, "lost", f"{MINE}runner")
    began = anyio.current_time()
    found = await check(tmp_path)
    assert anyio.current_time() - began >= 0.2
    assert (found.examined, found.found) == (1, 1)
    assert "sandbox lost is there, and its owner" in found.violations[0].what
    assert found.violations[0].rows["worker"] == f"{MINE}runner"


async def test_a_sandbox_that_is_removed_within_the_time_to_live_is_not_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(tmp_path, "lost", f"{MINE}verifier")
    looks: list[list[Record]] = []

    def seen(root: Path) -> list[Record]:
        looks.append(records(root))
        return looks[-1]

    monkeypatch.setattr(audited, "records", seen)
    async with anyio.create_task_group() as tasks:

        async def tidy() -> None:
            await eventually(lambda: looks)
            record_path(tmp_path, "lost").unlink()

        tasks.start_soon(tidy)
        found = await check(tmp_path, ttl_s=30.0)  # the check does not wait for longer than they are there
    assert [len(look) for look in looks] == [1, 0]
    assert (found.examined, found.found) == (1, 0)


async def test_nothing_is_waited_for_where_the_machine_was_started_since(tmp_path: Path) -> None:
    left(tmp_path, "lost", f"{MINE}runner", boot="another")
    assert (await check(tmp_path, ttl_s=3000.0)).found == 1


async def test_living_owners_and_the_workers_of_other_runs_are_left_alone(tmp_path: Path) -> None:
    left(tmp_path, "mine", f"{MINE}runner", dead=False)
    for name, worker in (("other", f"{OTHERS}runner"), ("conformance", "")):
        left(tmp_path, name, worker)
    assert ((found := await check(tmp_path)).examined, found.found) == (1, 0)
    assert not found.skipped


@pytest.mark.parametrize(
    ("alive", "reason"), [(None, "not known"), (frozenset({"gateway"}), "no runner or verifier has lived")]
)
async def test_while_no_process_can_remove_them_the_check_is_skipped(
    tmp_path: Path, alive: frozenset[str] | None, reason: str
) -> None:
    left(tmp_path, "lost", f"{MINE}runner")
    found = await check(tmp_path, alive)
    assert reason in (found.skipped or "") and not found.found
