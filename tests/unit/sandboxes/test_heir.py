"""What a killed owner of sandboxes leaves is gone at once, without a next start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from orchestrator.embedded.layout import RunLayout
from orchestrator.embedded.leftovers import kill_descendants, mark
from sandboxes import procfs
from sandboxes.base import SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.heir import heirs
from sandboxes.reap import default_root

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
    """Start one that is killed `delay` seconds after it starts a program: its exit status, and its number."""
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", OWNER, reference, delay]) as process:
        return process.wait(), process.pid


def left(pid: int) -> list[str]:
    """Its heir, its sandboxes, and whoever carries one of those."""
    records = [path.name for path in default_root().iterdir() if path.name != "reap.lock"]
    heirs = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f'"pid": {pid},'.encode() in command(entry)
    ]
    sandboxes = [str(found) for name in records for found in procfs.marked(procfs.MARKER, name)]
    return [*records, *heirs, *sandboxes]


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
        until = time.monotonic() + PATIENCE_S
        while (found := left(pid)) and time.monotonic() < until:
            time.sleep(0.01)
        assert found == [], f"killed after {milliseconds} ms"


def test_an_owner_that_ends_by_itself_leaves_no_heir(root: Path) -> None:
    status, pid = owner(PROVIDERS[0], "never")
    assert (status, left(pid)) == (0, [])


async def own_heir() -> int:
    """The heir of this process. For a moment after it was started the kernel shows no command line of it."""
    with anyio.fail_after(PATIENCE_S):
        while not (found := heirs(os.getpid())):
            await anyio.sleep(0.005)
    [heir] = found
    return heir


@pytest.mark.anyio
async def test_an_heir_that_was_killed_is_replaced_when_the_next_sandbox_is_opened(root: Path) -> None:
    provider = BubblewrapProvider()
    async with provider.open(SandboxSpec()):
        first = await own_heir()
        os.kill(first, signal.SIGKILL)
        with anyio.fail_after(PATIENCE_S):
            while (found := procfs.stat(first)) is not None and found.state != "Z":
                await anyio.sleep(0.005)
    async with provider.open(SandboxSpec()):
        second = await own_heir()
    assert second != first


def test_a_child_that_its_owner_forked_does_not_keep_an_heir_from_its_work(root: Path) -> None:
    forks = OWNER.replace(
        "        def die():",
        "        if os.fork() == 0:\n            time.sleep(30)\n            os._exit(0)\n        def die():",
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", forks, PROVIDERS[0], "0.02"], start_new_session=True
    )
    try:
        assert process.wait() == -signal.SIGKILL
        began = time.monotonic()
        while found := left(process.pid):
            assert time.monotonic() - began < PATIENCE_S, found
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the child


def test_a_supervisor_that_kills_what_a_dead_worker_left_spares_its_heir(root: Path, tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    marked = {**os.environ, **mark(layout, "runner")}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", OWNER, PROVIDERS[0], "0.05"], env=marked
    )
    assert process.wait() == -signal.SIGKILL
    kill_descendants(layout, "runner")
    until = time.monotonic() + PATIENCE_S
    while found := left(process.pid):
        assert time.monotonic() < until, found
        time.sleep(0.01)
