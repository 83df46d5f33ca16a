"""Hosts leave nothing behind, however their session ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack_rig import REPOSITORY
from tests.hosts.network import NAMES, PREFIX, remove_leftovers

pytestmark = pytest.mark.tier("hosts")

KILLED = """
import os, signal
from tests.hosts.network import Network
network = Network()
host = network.add("one")
other = network.add("two")
from pathlib import Path
process = other.start("sleep", ["sleep", "1000"], log=Path("/dev/null"), env=dict(os.environ))
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_a_killed_session_are_removed_by_the_next_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = [path.name for path in NAMES.glob(f"{PREFIX}*")]
    assert sum(name.endswith(("-lan", "-one", "-two")) for name in left) >= 3, left
    remove_leftovers()
    owners = {path.name.removeprefix(PREFIX).partition("-")[0] for path in NAMES.glob(f"{PREFIX}*")}
    assert all(Path(f"/proc/{owner}").exists() for owner in owners)
    pid = int(done.stdout)
    command = Path(f"/proc/{pid}/cmdline")
    assert not command.exists() or command.read_bytes() == b"", "dead, or dead and not waited for yet"
