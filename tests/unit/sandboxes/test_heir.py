"""What a killed owner of sandboxes leaves is gone at once, without a next start."""

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from sandboxes import procfs
from sandboxes.base import SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.reap import default_root
from tests.unit.sandboxes.conftest import heirs

PATIENCE_S = 20.0
MARK = "PENSTOCK_TEST_OWNER"
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


def owner(reference: str, delay: str) -> tuple[int, str]:
    """Start one that is killed `delay` seconds after it starts a program: its exit status, and the mark of all that it started."""
    mark = secrets.token_hex(8)
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OWNER, reference, delay],
        env={**os.environ, MARK: mark},
        check=False,
    )
    return ended.returncode, mark


def left(mark: str) -> list[str]:
    """Its processes (an heir carries the mark, a sandbox does not), sandboxes, and whoever carries one of those."""
    root = default_root()
    living = [
        pid for pid in procfs.marked(MARK, mark) if (found := procfs.stat(pid)) and found.state not in "ZX"
    ]
    sandboxes = [path.name for path in root.iterdir() if path.name != "reap.lock"]
    return [*map(str, living), *sandboxes]


@pytest.mark.parametrize("reference", PROVIDERS)
def test_whenever_in_the_start_of_a_program_its_owner_is_killed_nothing_is_left(
    root: Path, reference: str
) -> None:
    for milliseconds in range(0, 16, 2):
        status, mark = owner(reference, str(milliseconds / 1000))
        assert status == -signal.SIGKILL
        until = time.monotonic() + PATIENCE_S
        while (found := left(mark)) and time.monotonic() < until:
            time.sleep(0.01)
        assert found == [], f"killed after {milliseconds} ms"


def test_an_owner_that_ends_by_itself_leaves_no_heir(root: Path) -> None:
    status, mark = owner(PROVIDERS[0], "never")
    assert (status, left(mark)) == (0, [])


@pytest.mark.anyio
async def test_an_heir_that_was_killed_is_replaced_when_the_next_sandbox_is_opened(root: Path) -> None:
    provider = BubblewrapProvider()
    async with provider.open(SandboxSpec()):
        [first] = heirs(os.getpid())
        os.kill(first, signal.SIGKILL)
        with anyio.fail_after(PATIENCE_S):
            while (found := procfs.stat(first)) is not None and found.state != "Z":
                await anyio.sleep(0.005)
    async with provider.open(SandboxSpec()):
        [second] = heirs(os.getpid())
    assert second != first
