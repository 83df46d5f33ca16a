"""The owner of a sandbox, and the sandbox's fate when the owner was killed."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import anyio
import pytest

from sandboxes import procfs, tree
from sandboxes.base import SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.cleanup_daemon import cleanup_daemons
from sandboxes.owner import Owner, Record, prepare_root, record_path, records, working_as
from sandboxes.reap import Reaped, default_root, reap

DAEMON = "(setsid sleep 600 &) "


def killed_owner(reference: str) -> None:
    """Start an owner in a process of its own, and kill its cleanup daemon, then the owner while its program runs."""
    command = [sys.executable, "-W", "ignore", "-m", "sandboxes.conformance.victim", reference, DAEMON]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        line = victim.stdout.readline()
        assert procfs.kill(cleanup_daemons(victim.pid)) == 1
        victim.kill()
    assert line == b"ready\n"


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


def test_a_root_of_another_user_is_refused(root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to("real")
    with pytest.raises(SandboxError, match="belongs to another user"):
        prepare_root(root / "link")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
def test_in_a_directory_that_others_can_write_no_record_is_believed(root: Path, mode: int) -> None:
    """Another user makes it first: its records could name any file and any process."""
    base, precious = default_root(), root / "precious"
    precious.mkdir()
    base.mkdir()
    base.chmod(mode)
    owner = asdict(replace(Owner.current(), boot="another"))
    record = {"id": str(precious), "owner": owner, "cgroups": [], "uid": -1}
    (base / "planted.json").write_text(json.dumps(record))
    found = reap(base)
    assert (found.sandboxes, found.processes) == (0, 0) and "writable by others" in found.failures[0]
    assert records(base) == [] and precious.exists() and not (base / "reap.lock").exists()
    with pytest.raises(SandboxError, match="writable by other users"):
        prepare_root(base)


def test_a_link_to_a_directory_of_ours_is_not_cleaned_up(root: Path) -> None:
    (root / "real").mkdir()
    default_root().symlink_to("real")
    assert "belongs to another user" in reap(default_root()).failures[0]
    assert list((root / "real").iterdir()) == []


def test_a_record_names_no_other_place_than_its_own(root: Path) -> None:
    base, precious = default_root(), root / "precious"
    precious.mkdir()
    prepare_root(base)
    owner = asdict(replace(Owner.current(), boot="another"))
    record = {"id": "../precious", "owner": owner, "cgroups": [], "uid": 54321}
    (base / "planted.json").write_text(json.dumps(record))
    assert [(found.id, found.uid) for found in records(base)] == [("planted", -1)]
    assert reap(base).sandboxes == 1 and precious.exists()


def test_a_lock_that_is_a_link_is_not_followed(root: Path) -> None:
    base, other = default_root(), root / "other"
    other.write_text("x")
    other.chmod(0o644)
    prepare_root(base)
    (base / "reap.lock").symlink_to(other)
    with pytest.raises(OSError, match=r"reap\.lock"):
        reap(base)
    assert other.stat().st_mode & 0o777 == 0o644


def test_a_sandbox_that_cannot_be_removed_keeps_no_other_from_being_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = default_root()
    prepare_root(base)
    dead = replace(Owner.current(), boot="another")
    for name in ("first", "stubborn", "torn"):
        Record(id=name, owner=dead, cgroups=(), uid=-1).write(base)
        (base / name).mkdir()
    record_path(base, "torn").write_bytes(b"")  # as a power loss leaves it

    def remove(path: Path) -> None:
        if path.name == "stubborn":
            raise PermissionError(1, "not permitted", str(path))
        removed(path)

    removed = tree.remove
    monkeypatch.setattr(tree, "remove", remove)
    found = reap(base)
    assert (found.sandboxes, len(found.failures)) == (2, 1) and "stubborn" in found.failures[0]
    assert sorted(path.name for path in base.iterdir()) == ["reap.lock", "stubborn", "stubborn.json"]


def test_a_process_that_hangs_while_it_cleans_up_does_not_block_others_for_long(root: Path) -> None:
    base = default_root()
    prepare_root(base)
    with (base / "reap.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = reap(base, patience_s=0.05)
    assert found.sandboxes == 0 and "another process" in found.failures[0]


def test_an_abandoned_record_is_swept_and_one_that_is_being_written_is_not(root: Path) -> None:
    base = default_root()
    prepare_root(base)
    for name, age_s in (("left", 5), ("written", 5), ("young", 0)):
        (base / f"{name}.new").touch()
        os.utime(base / f"{name}.new", (time.time() - age_s,) * 2)
    with (base / "written.new").open() as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        assert reap(base) == Reaped(0, 0)
    assert sorted(path.name for path in base.iterdir()) == ["reap.lock", "written.new", "young.new"]


def test_a_record_can_be_written_while_records_are_swept(root: Path) -> None:
    base = default_root()
    prepare_root(base)
    written = threading.Event()

    def sweeps() -> None:
        while not written.is_set():
            reap(base)

    with ThreadPoolExecutor(2) as pool:
        sweeping = pool.submit(sweeps)
        try:
            for number in range(2000):
                os.close(Record(id=f"r{number % 4}", owner=Owner.current(), cgroups=(), uid=-1).write(base))
        finally:
            written.set()
        sweeping.result()


def test_a_sandbox_of_another_pid_namespace_is_removed_once_its_record_is_unlocked(root: Path) -> None:
    base = default_root()
    prepare_root(base)
    record = Record(id="away", owner=replace(Owner.current(), namespace="pid:[1]"), cgroups=(), uid=-1)
    claim = record.write(base)
    assert not record.orphaned(base) and reap(base) == Reaped(0, 0)
    os.close(claim)  # as the kernel does for a container that ended
    assert record.orphaned(base) and reap(base) == Reaped(1, 0)
    assert not record.orphaned(base), "nothing is known of a record that is gone"
