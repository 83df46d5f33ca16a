"""Who owns a sandbox, and what happens to it when the owner was killed."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxes import procfs
from sandboxes.base import SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.owner import Owner, prepare_root, record_path, records, working_as
from sandboxes.reap import Reaped, default_root, reap
from tests.unit.sandboxes.conftest import heirs

DAEMON = "(setsid sleep 600 &) "


def killed_owner(reference: str) -> None:
    """Start an owner in a process of its own, and kill it while its program runs, and its heir before."""
    command = [sys.executable, "-W", "ignore", "-m", "sandboxes.conformance.victim", reference, DAEMON]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        said = victim.stdout.readline()
        assert procfs.kill(heirs(victim.pid)) == 1
        victim.kill()
    assert said == b"ready\n"


def test_an_owner_is_dead_only_when_that_is_sure() -> None:
    me = Owner.current()
    assert not me.is_dead()
    assert replace(me, start=me.start + 1).is_dead(), "the number was given to another process"
    assert replace(me, boot="another").is_dead(), "the machine was started again"
    assert not replace(me, namespace="pid:[1]", pid=1 << 22).is_dead(), "another container's cannot be judged"
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        found = procfs.stat(child.pid)
        assert found is not None and replace(me, pid=child.pid, start=found.start).is_dead(), "a zombie"
    assert replace(me, pid=child.pid).is_dead()


@pytest.mark.parametrize(
    "reference", ["sandboxes.bubblewrap:BubblewrapProvider", "sandboxes.local:LocalProvider"]
)
def test_everything_of_a_killed_owner_is_removed(root: Path, reference: str) -> None:
    killed_owner(reference)
    base = default_root()
    [record] = records(base)
    assert (base / record.id).is_dir()
    assert reap(base).sandboxes == 1
    assert not list(procfs.marked(procfs.MARKER, record.id))
    assert record.uid < 0 or not list(procfs.owned_by(record.uid))
    assert not any(Path(directory).exists() for directory in record.cgroups)
    assert [path.name for path in base.iterdir()] == ["reap.lock"]
    assert reap(base) == Reaped(0, 0)


@pytest.mark.anyio
async def test_the_sandboxes_of_live_owners_are_left_alone(root: Path) -> None:
    async with BubblewrapProvider().open(SandboxSpec()) as sandbox:
        process = await sandbox.start(["sh", "-c", "echo on; sleep 0.2; echo still"])
        await process.read()
        assert await anyio.to_thread.run_sync(reap, default_root()) == Reaped(0, 0)
        assert (await process.wait()).stdout == b"on\nstill\n"


@pytest.mark.anyio
async def test_a_record_says_as_whom_its_owner_works_and_an_older_one_says_nothing(root: Path) -> None:
    with working_as("host:/runs/first:runner"):
        async with BubblewrapProvider().open(SandboxSpec()):
            [record] = records(default_root())
    async with BubblewrapProvider().open(SandboxSpec()):
        [unnamed] = records(default_root())
        path = record_path(default_root(), unnamed.id)
        path.write_text(path.read_text().replace(', "worker": ""', ""))
        assert "worker" not in path.read_text() and records(default_root()) == [unnamed]
    assert (record.worker, unnamed.worker) == ("host:/runs/first:runner", "")


def test_a_root_of_somebody_elses_is_refused(root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to("real")
    with pytest.raises(SandboxError, match="belongs to somebody else"):
        prepare_root(root / "link")
