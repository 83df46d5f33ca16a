"""The belongings of a run on disk and in the kernel, by part. Bytes are those that the disk gives away, not lengths of files."""

import os
from collections.abc import Iterable
from pathlib import Path

from orchestrator.deploy.home import Home
from sandboxes.owner import records
from sandboxes.reap import default_root

BASE = "penstock"  # the parent of all our control groups (sandboxes/cgroups.py)
SEGMENTS = "/dev/shm/"


def disk(home: Home) -> dict[str, int]:
    """Bytes by part of the run's directory; `other`: the remaining files of Penstock's own."""
    layout = home.layout
    write_ahead = layout.postgres / "pgdata" / "pg_wal"
    parts = {
        "JetStream": layout.nats,
        "database": layout.postgres,
        "write-ahead log": write_ahead,
        "logs": layout.logs,
        "weights": home.policies,
        "journals": layout.journals,
    }
    held = {name: size(path) for name, path in parts.items()}
    held["database"] -= held["write-ahead log"]
    held["other"] = max(0, size(layout.root) - sum(held.values()))
    return held


def size(path: Path) -> int:
    """Bytes below `path`; 0 if it does not exist. Files that are removed during this do not count."""
    try:
        with os.scandir(path) as entries:
            found = list(entries)
    except OSError:
        return 0
    total = 0
    for entry in found:
        try:
            if entry.is_dir(follow_symlinks=False):
                total += size(Path(entry.path))
            else:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total


def kernel(home: Home, pids: Iterable[int]) -> dict[str, int]:
    """Numbers of the run's sandboxes, of control groups that are no other run's, of mounts below our directories, and of the shared memory that
    its processes have mapped."""
    mine, others = 0, set()
    for record in records(default_root()):
        if record.worker.startswith(home.workers):
            mine += 1
        else:
            others.add(record.id)
    below = (str(default_root()), str(home.layout.root))
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {
        "sandboxes open": mine,
        "control groups": sum(name not in others for name in _groups()),
        "mounts": sum(path.startswith(below) for path in mounts),
        "shared memory segments": len({name for pid in pids for name in _segments(pid)}),
    }


def _groups() -> set[str]:
    found: set[str] = set()
    for mount in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")):
        base = mount / BASE
        if base.is_dir():
            found |= {entry.name for entry in base.iterdir() if entry.is_dir()}
    return found


def _segments(pid: int) -> set[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    return {line[line.index(SEGMENTS) :] for line in lines if SEGMENTS in line}
