"""Clean up after owners that were killed: `python -m sandboxes.reap [DIR]`, or `reap(DIR)`.

The cleanup daemon of a killed owner (cleanup_daemon.py) does it at once. If that was killed too, another worker of the machine or the next start
does it. Live owners are not touched.
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
from sandboxes.owner import Record, is_ours, record_path, records

_BUSY_S = 2.0
_POLL_INTERVAL_S = 0.02
_UNFINISHED_S = 2.0  # between creating a record's file and locking it


@dataclass(frozen=True, slots=True)
class Reaped:
    """The numbers of sandboxes and processes that were left behind and are now removed, and one sentence for each failed removal."""

    sandboxes: int
    processes: int
    failures: tuple[str, ...] = ()


def default_root() -> Path:
    """The default directory of providers' sandboxes: one per user."""
    return Path(tempfile.gettempdir()) / f"penstock-sandboxes-{os.geteuid()}"


def reap(root: Path, *, patience_s: float = _BUSY_S) -> Reaped:
    """Remove every sandbox below `root` whose owner is dead. Safe to run next to live owners and to itself: it waits for another running cleanup
    for at most `patience_s` seconds. A sandbox that cannot be removed does not prevent the removal of others. A directory that another user can write
    is left as it is, and named.
    """
    if not os.path.lexists(root):
        return Reaped(0, 0)
    if not is_ours(root):  # its records could name any file and any process
        return Reaped(0, 0, (f"{root} belongs to another user or is writable by others: remove it",))
    with alone(root, patience_s) as acquired:
        if not acquired:
            return Reaped(0, 0, (f"another process has been cleaning up {root} for {patience_s:g} s",))
        _sweep(root)
        cgroups.remove_probes()
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
    """Yields whether this process has the exclusive right to clean up `root`. The wait is bounded: the holder of the lock may be stopped."""
    deadline = time.monotonic() + patience_s
    claim = os.open(root / "reap.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(claim, "w") as lock:
        os.fchmod(claim, 0o600)  # who can read it could hold the lock
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(_POLL_INTERVAL_S)
            else:
                yield True
                return


def _sweep(root: Path) -> None:
    """Remove records that were never finished, of owners that were killed or had no space. An owner that still writes one holds its lock. A new
    record is not touched, since its owner may not have locked it yet."""
    for path in root.glob("*.new"):
        with suppress(OSError):
            if path.stat().st_mtime >= time.time() - _UNFINISHED_S:
                continue
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                path.unlink()


def _bury(root: Path, record: Record) -> int:
    killed = _kill(record)
    if record.cgroups:
        cgroups.from_directories(record.cgroups).remove()
    tree.remove(root / record.id)
    record_path(root, record.id).unlink(missing_ok=True)
    return killed


def _kill(record: Record, timeout_s: float = 5.0) -> int:
    """End all remaining processes of a sandbox. Returns their number."""
    total = 0
    deadline = time.monotonic() + timeout_s
    while True:
        found = set(procfs.marked(procfs.MARKER, record.id))
        if record.uid >= 0:
            found.update(procfs.owned_by(record.uid, record.users))
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
