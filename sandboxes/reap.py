"""Clean up after owners that were killed: `python -m sandboxes.reap [DIR]`, or `reap(DIR)`.

The heir of a killed owner (heir.py) does it at once; where that was killed too, another worker of the machine or the next start.
Live owners are left alone.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sandboxes import cgroups, procfs, tree
from sandboxes.base import SandboxError
from sandboxes.owner import Record, record_path, records

_BUSY_S = 2.0
_LOOK_S = 0.02
_UNFINISHED_S = 2.0  # between making a record's file and locking it


@dataclass(frozen=True, slots=True)
class Reaped:
    """How much was left behind and is gone, and what could not be removed: one sentence each."""

    sandboxes: int
    processes: int
    failures: tuple[str, ...] = ()


def default_root() -> Path:
    """Where providers keep sandboxes unless told otherwise: one directory per user."""
    return Path(tempfile.gettempdir()) / f"penstock-sandboxes-{os.geteuid()}"


def reap(root: Path, *, patience_s: float = _BUSY_S) -> Reaped:
    """Remove every sandbox below `root` whose owner is dead. Safe to run beside live owners and itself: while somebody else does it, that is
    waited for, `patience_s` seconds at most. What cannot be removed keeps nothing else from being removed.
    """
    if not root.is_dir():
        return Reaped(0, 0)
    with alone(root, patience_s) as ours:
        if not ours:
            return Reaped(0, 0, (f"somebody else has been cleaning up {root} for {patience_s:g} s",))
        _sweep(root)
        removed = processes = 0
        failures: list[str] = []
        for record in records(root):
            if not record.orphaned(root):
                continue
            try:
                processes += _bury(root, record)
                removed += 1
            except (OSError, SandboxError) as error:
                failures.append(f"sandbox {record.id}: {error}")
        return Reaped(removed, processes, tuple(failures))


@contextmanager
def alone(root: Path, patience_s: float) -> Iterator[bool]:
    """Whether nobody else cleans up `root` meanwhile. Never waits for ever: whoever holds the lock may be stopped."""
    deadline = time.monotonic() + patience_s
    with (root / "reap.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(_LOOK_S)
            else:
                yield True
                return


def _sweep(root: Path) -> None:
    """Records that were never finished, of owners that were killed or had no room: whoever still writes one holds its lock."""
    for path in root.glob("*.new"):
        with suppress(OSError), path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if path.stat().st_mtime < time.time() - _UNFINISHED_S:
                path.unlink()


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
    for failure in found.failures:
        print(failure, file=sys.stderr)
    sys.exit(bool(found.failures))


if __name__ == "__main__":
    main()
