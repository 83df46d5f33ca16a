"""Recognises our PostgreSQL servers among the processes, and cleans up after a killed one.

A server is recognised by the pid in `postmaster.pid` *and* by that process's command line (`-D <pgdata>`), its backends by the cluster name in
their titles. A pid alone is not a proof.
"""

import hashlib
import os
import signal
from pathlib import Path

from orchestrator.deploy.embedded.identity import ProcessId

_NO_PROCESS = 2**31 - 1  # above every pid that the kernel assigns


def running_server(pgdata: Path) -> ProcessId | None:
    """The postmaster of a data directory, recognised by pid and command line, or None."""
    try:
        pid = int((pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
        identity = ProcessId.of(pid)
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return None
    return identity if _serves(pid, pgdata) and identity.alive else None


def _serves(pid: int, pgdata: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().endswith(f"\0-D\0{pgdata}\0".encode())
    except OSError:
        return False


def cluster_name(pgdata: Path) -> str:
    return "penstock-" + hashlib.sha256(os.fsencode(pgdata)).hexdigest()[:12]


def kill_orphans(pgdata: Path) -> None:
    """Ends the processes of a server whose postmaster is dead. Idle ones exit by themselves. One inside a long query does not notice,
    holds the shared memory, and would make the next start fail. Crash recovery repairs the effects of the kill."""
    title = f"postgres: {cluster_name(pgdata)}: ".encode()
    owner = pgdata.stat().st_uid
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            identity = ProcessId.of(int(entry.name))
            orphaned = entry.stat().st_uid == owner and (
                (entry / "cmdline").read_bytes().startswith(title) or _serves(identity.pid, pgdata)
            )
        except (FileNotFoundError, ProcessLookupError):
            continue
        if orphaned:
            identity.send(signal.SIGKILL)


def disarm_lock_file(pgdata: Path) -> None:
    """Replaces the pid in PostgreSQL's lock file by one that no process has. PostgreSQL refuses to start while any process has that pid, even an
    unrelated one that received it later. The rest of the file stays, since the check of the shared memory needs it."""
    path = pgdata / "postmaster.pid"
    try:
        first, rest = path.read_text().split("\n", 1)
        os.kill(int(first), 0)
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return
    except PermissionError:
        pass
    path.write_text(f"{_NO_PROCESS}\n{rest}")
