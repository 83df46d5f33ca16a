"""I5 on this machine: what a dead worker of the run has left is gone within the time to live, or named."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from orchestrator.audit import Checked
from orchestrator.audit import sandboxes as audited
from orchestrator.audit.snapshot import Outside
from sandboxes.owner import Owner, Record, record_path

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
MINE, OTHERS = "host:/runs/first/.penstock:", "host:/runs/first2/.penstock:"
ALIVE = frozenset({"runner"})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audited, "SLACK_S", 0.0)


def left(root: Path, name: str, worker: str, *, dead: bool = True, boot: str = "") -> None:
    me = Owner.current()
    owner = replace(me, start=me.start + dead, boot=boot or me.boot)
    Record(name, owner, (), -1, worker).write(root)


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


async def test_what_somebody_removes_within_the_time_to_live_is_no_violation(tmp_path: Path) -> None:
    left(tmp_path, "lost", f"{MINE}verifier")
    async with anyio.create_task_group() as tasks:

        async def tidy() -> None:
            await anyio.sleep(0.1)
            record_path(tmp_path, "lost").unlink()

        tasks.start_soon(tidy)
        found = await check(tmp_path, ttl_s=30.0)  # nobody waits for longer than it is there
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
async def test_while_nobody_is_there_to_remove_them_the_check_is_skipped(
    tmp_path: Path, alive: frozenset[str] | None, reason: str
) -> None:
    left(tmp_path, "lost", f"{MINE}runner")
    found = await check(tmp_path, alive)
    assert reason in found.skipped and not found.found
