"""Errors of this machine are the platform's: whatever fails for lack of descriptors or of disk says so by its type, and no file is lost over it."""

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sandboxes import artifacts
from sandboxes.base import ArtifactLimits, File, Limits, MachineFault, SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.machine import FAULTS, is_fault
from sandboxes.program import SupervisedProgram
from sandboxes.unstartable import spawn
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

OTHERS = {errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.ENOENT, errno.ELOOP, errno.ENOTDIR}


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open `count` more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each) for each in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8 + count, hard))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", sorted(FAULTS | OTHERS), ids=errno.errorcode.get)
def test_a_program_that_this_machine_cannot_start_has_another_error_than_one_that_its_sandbox_cannot(
    number: int,
) -> None:
    def fails() -> SupervisedProgram:
        raise OSError(number, os.strerror(number))

    with pytest.raises(SandboxError, match="cannot start a program") as raised:
        spawn(fails)
    assert isinstance(raised.value, MachineFault) is (number in FAULTS)


async def test_without_descriptors_everything_is_done_or_is_the_machines_fault(root: Path) -> None:
    failed, done = set[str](), set[str]()
    async with BubblewrapProvider().open(SandboxSpec(files={"/app/d/x": File(b"1")})) as sandbox:
        assert (await sandbox.exec(["true"])).ok
        before = len(os.listdir("/proc/self/fd"))
        for count in range(14):
            for name, work in {
                "exec": lambda: sandbox.exec(["true"]),
                "put": lambda: sandbox.put({"/app/d/e/y": File(b"2")}),
                "get": lambda: sandbox.get("/app/d/x"),
            }.items():
                error: Exception | None = None
                with descriptors_left(count):
                    try:
                        await work()  # type: ignore[no-untyped-call]
                    except Exception as caught:  # noqa: BLE001 - judged below
                        error = caught
                assert error is None or is_fault(error), (count, name, repr(error))
                (done if error is None else failed).add(name)
        assert (await sandbox.exec(["cat", "d/e/y"])).stdout == b"2"
        assert len(os.listdir("/proc/self/fd")) <= before, "a failure leaves descriptors open"
    assert failed == done == {"exec", "put", "get"}


def test_without_descriptors_no_file_of_a_work_directory_looks_deleted_or_odd(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    for name in ("new", "old", "kept"):
        (tmp_path / f"a/b/c/{name}").write_text(name)
    placed = {
        f"a/b/c/{name}": artifacts.PlacedEntry.of(File(text))
        for name, text in (("old", b"o"), ("kept", b"kept"))
    }
    failures = 0
    for count in range(8):
        with descriptors_left(count):
            try:
                found = artifacts.changed(tmp_path, placed, ArtifactLimits())
            except OSError as error:
                assert is_fault(error)
                failures += 1
                continue
        assert ([*found.added], [*found.modified], found.deleted) == (["a/b/c/new"], ["a/b/c/old"], ())
        assert found.complete
    assert 0 < failures < 8


HOLDS = "exec 3>held; rm held; head -c 2097152 /dev/zero >&3; touch up; sleep 300"
"""A program that holds 2 MiB without a name, just as many as a limit allows: it goes on."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize(
    ("disk_mb", "program"),
    [(64, ""), (1, ""), (2, HOLDS)],
    ids=["by others", "by its own files", "by files without a name of its own programs"],
)
async def test_a_full_disk_is_the_machines_fault_unless_the_sandbox_is_over_its_limit(
    disk_mb: int, program: str, root: Path
) -> None:
    disk = root / "disk"
    disk.mkdir(mode=0o711)
    await anyio.run_process(["mount", "-t", "tmpfs", "-o", "size=4m,mode=711", "none", disk])
    try:
        limits = Limits(disk_mb=disk_mb)
        async with BubblewrapProvider(disk / "s").open(SandboxSpec(limits=limits)) as sandbox:
            (disk / "others").write_bytes(bytes(1 << 20))
            if program:
                await sandbox.start(["sh", "-c", program])
                await eventually(lambda: list(disk.glob("s/*/files/app/up")))
            else:
                await sandbox.put({"/app/most": File(b"1" * (2 << 20))})
            with pytest.raises(SandboxError, match=r"cannot place /app/more: .*No space left") as raised:
                await sandbox.put({"/app/more": File(b"1" * (2 << 20))})
            assert isinstance(raised.value, MachineFault) is (disk_mb == 64)
    finally:
        await anyio.run_process(["umount", disk])


async def test_a_sandbox_works_with_descriptors_above_those_of_select(root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 1400:
        pytest.skip("this machine has too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1400), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        async with BubblewrapProvider().open(SandboxSpec()) as sandbox:
            assert (await sandbox.exec(["true"])).ok
            assert (await sandbox.changed()).complete
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
