"""A small disk that a test can fill: a tmpfs, which only root can mount. The next test with such a disk removes those of killed processes."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops.lab.chaos import disk
from orchestrator.deploy.embedded.identity import ProcessId

SIZE_MB = 8
PREFIX = "penstock-test-"
"""The source of a disk goes on with the process id of its owner, and the start time of that."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """Unlike `tmp_path`, the users of sandboxes can pass through it, and a Unix socket's path fits."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def small_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """`SIZE_MB` large, or as large as the test's parameter. Every user may pass through it."""
    monkeypatch.setattr(disk, "SIZE_MB", getattr(request, "param", SIZE_MB))
    remove_leftovers()
    with mounted(directory / "disk") as there:
        if not there:
            pytest.skip("only root can mount a small disk")
        yield directory / "disk"


@contextmanager
def mounted(place: Path) -> Iterator[bool]:
    """A small disk of this process at `place`, in a directory of its own. False: this user or this machine cannot."""
    owner = ProcessId.mine()
    try:
        yield disk.mount(place, source=f"{PREFIX}{owner.pid}-{owner.started}")
    finally:
        disk.unmount(place)


def remove_leftovers() -> None:
    """Remove the small disks of processes that were killed, with their directories."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, place, *_ = line.split(" ")
        if source.startswith(PREFIX):
            pid, started = map(int, source.removeprefix(PREFIX).split("-"))
            if not ProcessId(pid, started, ProcessId.mine().boot).alive:
                # Lazily: what a killed test started may be about to end. Another session may remove the same disk at the same time.
                subprocess.run(["umount", "--lazy", place], capture_output=True)
                shutil.rmtree(Path(place).parent, ignore_errors=True)
