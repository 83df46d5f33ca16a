"""Failpoints: armed by files while a process runs, one line per arrival. Without a directory nothing happens, and no file is read."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from orchestrator.runtime import failpoints
from orchestrator.runtime.failpoints import BOUNDARIES, boundary, boundary_sync

pytestmark = pytest.mark.anyio

BUS, DISK = "publish.steps", "journal.sync"


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a process in which failpoints are enabled."""
    monkeypatch.setattr(failpoints, "directory", tmp_path)
    return tmp_path


class Act:
    """Counts how often it is performed."""

    def __init__(self) -> None:
        self.done = 0

    def now(self) -> int:
        self.done += 1
        return self.done

    async def later(self) -> int:
        return self.now()


async def test_without_a_directory_an_act_is_performed_once_and_no_file_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looked(name: str) -> None:
        raise AssertionError(f"{name} was looked at")

    monkeypatch.setattr(failpoints, "directory", None)
    monkeypatch.setattr(failpoints, "_taken", looked)
    act = Act()
    assert await boundary(BUS, act.later) == 1
    assert boundary_sync(DISK, act.now) == 2


async def test_raise_before_prevents_the_act_and_after_hides_that_it_was_performed(armed: Path) -> None:
    act = Act()
    (armed / f"{BUS}.before").write_text("raise\n")
    with pytest.raises(ConnectionResetError):
        await boundary(BUS, act.later)
    assert act.done == 0
    (armed / f"{BUS}.after").write_text("raise")
    with pytest.raises(ConnectionResetError):
        await boundary(BUS, act.later)
    assert act.done == 1
    assert await boundary(BUS, act.later) == 2


def test_a_disk_that_is_full_says_so(armed: Path) -> None:
    (armed / f"{DISK}.before").write_text("raise")
    with pytest.raises(OSError) as raised:
        boundary_sync(DISK, Act().now)
    assert raised.value.errno == errno.ENOSPC


async def test_duplicate_performs_the_act_twice_and_gives_the_second_answer(armed: Path) -> None:
    act = Act()
    (armed / BUS).write_text("duplicate")
    (armed / DISK).write_text("duplicate")
    assert await boundary(BUS, act.later) == 2
    assert boundary_sync(DISK, act.now) == 4


async def test_a_delay_is_waited_for(armed: Path) -> None:
    (armed / f"{BUS}.before").write_text("delay 3600")
    act = Act()
    with anyio.move_on_after(0.01) as waited:
        await boundary(BUS, act.later)
    assert waited.cancelled_caught and act.done == 0


async def test_a_point_that_is_armed_for_one_process_is_passed_by_the_others_and_taken_there_first(
    armed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = f"{BUS}.before"
    (armed / f"{point}@runner").write_text("raise")
    act = Act()
    for process in (None, "verifier"):
        monkeypatch.delenv(failpoints.PROCESS, raising=False)
        if process is not None:
            monkeypatch.setenv(failpoints.PROCESS, process)
        assert await boundary(BUS, act.later)
    monkeypatch.setenv(failpoints.PROCESS, "runner")
    (armed / point).write_text("delay 0")
    with pytest.raises(ConnectionResetError):
        await boundary(BUS, act.later)
    assert await boundary(BUS, act.later) == 3
    assert (armed / failpoints.HITS).read_text().splitlines() == [
        f"{point}@runner raise {os.getpid()} runner",
        f"{point} delay 0 {os.getpid()} runner",
    ]


async def test_each_line_is_one_arrival_in_order_and_each_hit_is_noted(armed: Path) -> None:
    point = f"{BUS}.before"
    (armed / point).write_text("raise\ndelay 0\nraise\n")
    act = Act()
    for fails in (True, False, True, False):
        try:
            await boundary(BUS, act.later)
        except ConnectionResetError:
            assert fails
        else:
            assert not fails
    mine = os.getpid()
    assert (armed / failpoints.HITS).read_text().splitlines() == [
        f"{point} raise {mine} -",
        f"{point} delay 0 {mine} -",
        f"{point} raise {mine} -",
    ]
    assert [path.name for path in armed.iterdir()] == [failpoints.HITS]


async def test_a_file_that_is_being_written_is_left_alone(armed: Path) -> None:
    (armed / f"{BUS}.before").touch()
    assert await boundary(BUS, Act().later) == 1
    assert (armed / f"{BUS}.before").exists()


def test_exit_kills_the_process_and_no_handler_runs(tmp_path: Path) -> None:
    program = f"""
import atexit
from orchestrator.runtime.failpoints import boundary_sync
atexit.register(print, "a handler ran")
boundary_sync({DISK!r}, lambda: print("performed", flush=True))
"""
    (tmp_path / f"{DISK}.after").write_text("exit")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PENSTOCK_FAILPOINTS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "performed\n", "")


@pytest.mark.parametrize(
    ("file", "action"), [(f"{BUS}.before", "explode"), (f"{BUS}.after", "duplicate"), (BUS, "exit")]
)
async def test_an_unknown_action_is_named_with_what_is_known(armed: Path, file: str, action: str) -> None:
    (armed / file).write_text(action)
    with pytest.raises(ValueError, match=f"the failpoint {file} cannot do '{action}'"):
        await boundary(BUS, Act().later)


def test_every_boundary_says_what_happens_there_and_in_which_processes() -> None:
    known = {"orchestrator", "gateway", "runner", "verifier", "trainer", "rollout-server", "up", "client"}
    for name, found in BOUNDARIES.items():
        assert found.what and set(found.who) <= known and found.who, name
