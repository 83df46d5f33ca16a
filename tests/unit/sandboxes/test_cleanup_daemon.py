"""The leftovers of a killed owner of sandboxes are gone at once, without a next start."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.leftovers import kill_descendants, mark
from sandboxes import procfs
from sandboxes.base import SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.cleanup_daemon import cleanup_daemons
from sandboxes.reap import default_root
from tests.waiting import eventually, eventually_blocking

pytestmark = pytest.mark.tier("sandboxes")

PATIENCE_S = 20.0
OWNER = """
import os, signal, sys, threading, time
import anyio
from sandboxes.base import SandboxSpec
from sandboxes.conformance.load import load

async def own(reference, delay):
    async with load(reference).open(SandboxSpec()) as sandbox:
        def die():
            time.sleep(float(delay))
            os.kill(os.getpid(), signal.SIGKILL)
        if delay != "never":
            threading.Thread(target=die).start()
        await sandbox.exec(["sleep", "0" if delay == "never" else "600"], timeout_s=600)

anyio.run(own, *sys.argv[1:])
"""
PROVIDERS = ["sandboxes.bubblewrap:BubblewrapProvider", "sandboxes.local:LocalProvider"]


def owner(reference: str, delay: str) -> tuple[int, int]:
    """Start an owner that is killed `delay` seconds after it starts a program: its exit status, and its number."""
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", OWNER, reference, delay]) as process:
        return process.wait(), process.pid


def left(pid: int) -> list[str]:
    """Its cleanup daemon, its sandboxes, and the processes that carry one of those."""
    records = [path.name for path in default_root().iterdir() if path.name != "reap.lock"]
    cleanup_daemons = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f'"pid": {pid},'.encode() in command(entry)
    ]
    sandboxes = [str(found) for name in records for found in procfs.marked(procfs.MARKER, name)]
    return [*records, *cleanup_daemons, *sandboxes]


def nothing_left(pid: int) -> bool:
    return not left(pid)


def command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # gone
        return b""


@pytest.mark.parametrize("reference", PROVIDERS)
def test_whenever_in_the_start_of_a_program_its_owner_is_killed_nothing_is_left(
    root: Path, reference: str
) -> None:
    for milliseconds in range(0, 16, 2):
        status, pid = owner(reference, str(milliseconds / 1000))
        assert status == -signal.SIGKILL
        try:
            eventually_blocking(partial(nothing_left, pid), within_s=PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"killed after {milliseconds} ms, left: {left(pid)}") from None


def test_an_owner_that_ends_by_itself_leaves_no_cleanup_daemon(root: Path) -> None:
    status, pid = owner(PROVIDERS[0], "never")
    assert (status, left(pid)) == (0, [])


async def own_daemon() -> int:
    """The cleanup daemon of this process. For a moment after its start the kernel shows no command line for it."""
    found = await eventually(lambda: cleanup_daemons(os.getpid()), within_s=PATIENCE_S)
    [daemon] = found
    return daemon


@pytest.mark.anyio
async def test_a_cleanup_daemon_that_was_killed_is_replaced_when_the_next_sandbox_is_opened(
    root: Path,
) -> None:
    provider = BubblewrapProvider()
    async with provider.open(SandboxSpec()):
        first = await own_daemon()
        os.kill(first, signal.SIGKILL)
        await eventually(
            lambda: procfs.stat(first), lambda found: found is None or found.state == "Z", within_s=PATIENCE_S
        )
    async with provider.open(SandboxSpec()):
        second = await own_daemon()
    assert second != first


def test_a_child_that_its_owner_forked_does_not_keep_a_cleanup_daemon_from_its_work(root: Path) -> None:
    forks = OWNER.replace(
        "        def die():",
        "        if os.fork() == 0:\n            time.sleep(30)\n            os._exit(0)\n        def die():",
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", forks, PROVIDERS[0], "0.02"], start_new_session=True
    )
    try:
        assert process.wait() == -signal.SIGKILL
        eventually_blocking(partial(nothing_left, process.pid), within_s=PATIENCE_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the child


def test_a_supervisor_that_kills_what_a_dead_worker_left_spares_its_cleanup_daemon(
    root: Path, tmp_path: Path
) -> None:
    layout = RunLayout(tmp_path)
    marked = {**os.environ, **mark(layout, "runner")}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", OWNER, PROVIDERS[0], "0.05"], env=marked
    )
    assert process.wait() == -signal.SIGKILL
    kill_descendants(layout, "runner")
    eventually_blocking(partial(nothing_left, process.pid), within_s=PATIENCE_S)
