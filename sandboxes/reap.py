"""Clean up after owners that were killed: `python -m sandboxes.reap [DIR]`, or `reap(DIR)`.

The heir of a killed owner (heir.py) does it at once; the next start does it where the heir was killed, too. Live owners are left
alone.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sandboxes import cgroups, procfs, tree
from sandboxes.base import SandboxError
from sandboxes.owner import Record, record_path, records


@dataclass(frozen=True, slots=True)
class Reaped:
    """How much was left behind."""

    sandboxes: int
    processes: int


def default_root() -> Path:
    """Where providers keep sandboxes unless told otherwise: one directory per user."""
    return Path(tempfile.gettempdir()) / f"penstock-sandboxes-{os.geteuid()}"


def reap(root: Path) -> Reaped:
    """Remove every sandbox below `root` whose owner is dead. Safe to run beside live owners and itself."""
    if not root.is_dir():
        return Reaped(0, 0)
    with (root / "reap.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        dead = [record for record in records(root) if record.owner.is_dead()]
        return Reaped(len(dead), sum(_bury(root, record) for record in dead))


def _bury(root: Path, record: Record) -> int:
    killed = _kill(record)
    if record.cgroups:
        cgroups.from_directories(record.cgroups).remove()
    tree.remove(root / record.id)
    record_path(root, record.id).unlink(missing_ok=True)
    return killed


def _kill(record: Record, timeout_s: float = 5.0) -> int:
    """End whatever still runs for a sandbox; how many processes that were."""
    total = 0
    deadline = time.monotonic() + timeout_s
    while True:
        found = set(procfs.marked(procfs.MARKER, record.id))
        if record.uid >= 0:
            found.update(procfs.owned_by(record.uid))
        killed = procfs.kill(found)
        if not killed:
            return total
        total = max(total, killed)
        if time.monotonic() > deadline:
            raise SandboxError(f"processes {sorted(found)} of sandbox {record.id} do not die")
        time.sleep(0.005)


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else default_root()
    found = reap(root)
    print(f"{root}: removed {found.sandboxes} sandboxes, ended {found.processes} processes")


if __name__ == "__main__":
    main()
