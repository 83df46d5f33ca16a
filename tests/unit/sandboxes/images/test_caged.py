"""Who is at fault if a program in a cage fails: the task, its downloads, or this machine. A stub stands for the cage."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import cgroups
from sandboxes.base import (
    BuildOutOfSpace,
    BuildTimedOut,
    DownloadFailed,
    ImageRefused,
    Limits,
    MachineFault,
    SandboxError,
    SandboxFull,
)
from sandboxes.cgroups import Cgroup
from sandboxes.images import caged
from sandboxes.images.caged import Caged

pytestmark = pytest.mark.anyio

STEP = "STEP 2/3: RUN make"
BUILDAH = f'{STEP}\nError: building at STEP "RUN make": while running runtime: exit status 1\n'
GIB = 1 << 30


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caged:
    monkeypatch.setattr(caged, "_request", lambda _: b"{}")
    return Caged(argv=(), what="its build", binds=(), time_s=60.0, disk_mb=1024, grows=tmp_path)


def ends(monkeypatch: pytest.MonkeyPatch, printed: str, code: int) -> None:
    """Let the cage print, and end with a status, or by a signal if `code` is negative."""
    end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"os._exit({code})"
    stub = f"import os, sys; sys.stdin.read(); print({printed!r}, flush=True); {end}"
    monkeypatch.setattr(caged, "_CAGE", (sys.executable, "-c", stub))


@pytest.mark.parametrize(
    ("printed", "code", "kind", "says"),
    [
        (BUILDAH, 1, ImageRefused, r"its build failed at RUN make \(exit status 1\)"),
        (BUILDAH.replace("status 1", "status 137"), 137, ImageRefused, r"its build failed at RUN make"),
        ("E: no", 2, ImageRefused, "its build failed; its last lines: E: no"),
        (STEP, 137, SandboxError, "its build was ended from outside at RUN make"),
        (STEP, -signal.SIGKILL, SandboxError, "its build was ended from outside at RUN make"),
        ("a build cannot be shut off from this machine: no", 125, SandboxError, "cannot be shut off"),
        (f"503  Service Unavailable\n{BUILDAH}", 1, ImageRefused, "its build failed"),  # of an earlier step
        (
            BUILDAH.replace("Error", "Err:1 http://deb x\n  503  Service Unavailable\nError"),
            1,
            DownloadFailed,
            "; a download failed: try again later, or name mirrors of packages in sandbox.images.build_env; its last lines: Err:1",
        ),
    ],
)
async def test_a_program_fails_by_the_fault_of_the_task_of_a_server_or_of_the_machine(
    task: Caged, monkeypatch: pytest.MonkeyPatch, printed: str, code: int, kind: type[Exception], says: str
) -> None:
    ends(monkeypatch, printed, code)
    with pytest.raises(kind, match=says) as failed:
        await caged.run(task)
    assert type(failed.value) is kind


async def test_a_build_that_its_time_limit_ends_is_known_by_that(
    task: Caged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caged, "_CAGE", (sys.executable, "-c", "import time; time.sleep(600)"))
    with pytest.raises(
        BuildTimedOut, match=r"^its build takes longer than 0.1 s \(sandbox.images.build_s\)$"
    ):
        await caged.run(replace(task, time_s=0.1))


async def test_a_build_that_prints_too_much_is_ended_by_its_limit(
    task: Caged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caged, "_MAX_OUTPUT", 1 << 20)
    stub = f"import sys; sys.stdin.read(); print({STEP!r})\nwhile True: print('x' * 1000)"
    monkeypatch.setattr(caged, "_CAGE", (sys.executable, "-c", stub))
    logged: list[str] = []
    with pytest.raises(ImageRefused, match=r"^its build prints more than 1 MB$"):
        await caged.run(task, logged.append)
    assert 1 << 20 < sum(map(len, logged)) < 4 << 20


needs_groups = pytest.mark.skipif(cgroups.detect() is None, reason="no control groups that we may make")


@needs_groups
async def test_a_build_over_its_memory_is_ended_and_refused_by_its_key(
    task: Caged, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = f"import sys; sys.stdin.read(); print({STEP!r}, flush=True); b'x' * (1 << 30)"
    monkeypatch.setattr(caged, "_CAGE", (sys.executable, "-c", stub))
    says = r"^its build takes more than 100 MB of memory \(sandbox.images.build_memory_mb\) at RUN make$"
    with pytest.raises(ImageRefused, match=says):
        await caged.run(replace(task, memory_mb=100))


@needs_groups
async def test_a_build_that_starts_too_many_processes_is_ended(
    task: Caged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caged, "_PROCESSES", 5)
    stub = """import os, sys, time
sys.stdin.read()
try:
    while os.fork():
        pass
    os.closerange(0, 3)
except OSError:
    pass
while True:
    time.sleep(60)
"""
    monkeypatch.setattr(caged, "_CAGE", (sys.executable, "-c", stub))
    with pytest.raises(ImageRefused, match=r"^its build starts more than 5 processes and threads at once$"):
        await caged.run(replace(task, memory_mb=1000))


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Builds get their group below one with a limit of 100 MB and five processes."""
    found = cgroups.detect()
    assert found is not None
    above = found.create(cgroups.own_name(), Limits(memory_mb=100, processes=5))
    monkeypatch.setattr(caged, "_hierarchies", lambda: replace(found, mounts=above.directories))
    yield
    above.remove()


@needs_groups
@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("b'x' * (1 << 30)", "its build was ended from outside at RUN make: see the kernel's log"),
        ("[os.fork() for _ in range(5)]", "its build failed at RUN make: a limit of this machine refused it"),
    ],
)
async def test_a_build_that_a_limit_above_its_own_ends_is_the_machines_fault(
    task: Caged, monkeypatch: pytest.MonkeyPatch, does: str, says: str
) -> None:
    stub = f"import os, sys; sys.stdin.read(); print({STEP!r}, flush=True); {does}"
    monkeypatch.setattr(caged, "_CAGE", (sys.executable, "-c", stub))
    with pytest.raises(SandboxError, match=says) as failed:
        await caged.run(replace(task, memory_mb=1000))
    assert type(failed.value) is SandboxError


@needs_groups
async def test_the_control_group_of_a_build_ends_with_it(
    task: Caged, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(monkeypatch, "", 0)
    made: list[Cgroup] = []
    create = cgroups.Hierarchies.create

    def kept(hierarchies: cgroups.Hierarchies, name: str, limits: Limits) -> Cgroup:
        made.append(create(hierarchies, name, limits))
        return made[-1]

    monkeypatch.setattr(cgroups.Hierarchies, "create", kept)
    caged._hierarchies.cache_clear()
    for groups in (2, 3):  # the first is a probe
        await caged.run(replace(task, memory_mb=1000))
        assert len(made) == groups and not any(path.exists() for group in made for path in group.directories)


@needs_groups
@pytest.mark.parametrize(("printed", "code"), [(BUILDAH, 1), ("made", 0)], ids=["failed", "made"])
async def test_the_result_of_a_build_counts_if_its_control_group_cannot_be_removed(
    task: Caged, monkeypatch: pytest.MonkeyPatch, printed: str, code: int
) -> None:
    ends(monkeypatch, printed, code)
    lines: list[str] = []
    remove = Cgroup.remove
    caged._group(1000).remove()  # type: ignore[union-attr]

    def stuck(group: Cgroup, timeout_s: float = 5.0) -> None:
        remove(group, timeout_s)
        raise SandboxError("processes [7] do not die")

    monkeypatch.setattr(Cgroup, "remove", stuck)
    with pytest.raises(ImageRefused, match="failed at RUN make") if code else contextlib.nullcontext():
        await caged.run(replace(task, memory_mb=1000), lines.append)
    assert lines[-1] == "processes [7] do not die\n"


@pytest.mark.parametrize(
    ("free", "kind", "says"),
    [
        ((GIB // 2, 0), SandboxFull, "has no room for builds: free space there"),
        ((9 * GIB, 0), MachineFault, r"became full during a build, which may take 1024 MB \(sandbox"),
        ((9 * GIB, 8 * GIB), BuildOutOfSpace, "its build failed"),
    ],
)
async def test_a_build_that_fails_on_a_full_disk_is_not_the_tasks_fault(
    task: Caged, monkeypatch: pytest.MonkeyPatch, free: tuple[int, int], kind: type[Exception], says: str
) -> None:
    ends(monkeypatch, BUILDAH.replace("Error", "cp: No space left on device\nError"), 1)
    found, usage = iter(free), shutil.disk_usage(task.grows)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=next(found, free[1])))
    with pytest.raises(kind, match=says) as failed:
        await caged.run(task)
    assert type(failed.value) is kind


async def test_a_disk_that_takes_no_further_files_is_full(
    task: Caged, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(monkeypatch, BUILDAH, 1)
    real, calls = os.statvfs(task.grows), iter((9_000, 0))

    class Files:
        f_files, f_frsize, f_blocks = 10_000, real.f_frsize, real.f_blocks
        f_bfree = f_bavail = 9 * GIB // real.f_frsize

        def __init__(self, free: int) -> None:
            self.f_favail = free

    monkeypatch.setattr(os, "statvfs", lambda _: Files(next(calls, 0)))
    with pytest.raises(MachineFault, match="became full during a build"):
        await caged.run(task)
