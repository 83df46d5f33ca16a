"""Cleanup daemon: one per process that owns sandboxes. If the owner is killed, the daemon ends its programs and deletes their files and cgroups.

The kernel ends an isolated program with its owner, except in the milliseconds in which bubblewrap
starts, before it has set its parent-death signal. The kernel does not remove files and control groups. Without a daemon both wait for another
worker of the machine (runner/cleanup.py), or for the next start.

The owner writes the roots of its sandboxes to the daemon's standard input, one per line. An empty line means that the owner exits normally.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from sandboxes import procfs
from sandboxes.base import SandboxError
from sandboxes.owner import Owner, records
from sandboxes.reap import reap

_END_S = 5.0
_POLL_INTERVAL_S = 0.005
_BUSY_S = 60.0
_READ = 1 << 16


class _Owner:
    """The living cleanup daemon of this process, and the roots that it knows."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._roots: set[Path] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sandboxes.cleanup_daemon", json.dumps(asdict(Owner.current()))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            # The owner's environment is not passed on: neither secrets nor the mark by which a supervisor kills the leftovers of a dead process.
            env={"PYTHONPATH": os.pathsep.join(filter(None, (_HOME, os.environ.get("PYTHONPATH"))))},
            start_new_session=True,  # no signal to the owner's group reaches it
        )

    @property
    def holds(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def knows(self, root: Path) -> None:
        if root not in self._roots:
            self._say(f"{json.dumps(str(root))}\n")
            self._roots.add(root)

    def dismiss(self) -> None:
        """Let it exit, unless the owner left something. Then it stays and outlives its owner, as after a kill."""
        if not self.holds:
            return
        with suppress(OSError):
            self._say("\n")
        if not any(record.owner.pid == self._owner for root in self._roots for record in records(root)):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()


_HOME = str(Path(__file__).resolve().parents[1])
_daemon: _Owner | None = None
_lock = threading.Lock()


def ensure_running(root: Path) -> None:
    """From now on, what this process leaves below `root` is removed as soon as it is killed. Later calls are cheap. The first call, and one
    after the daemon itself was killed, block for milliseconds.

    Raises SandboxError when the daemon cannot be started.
    """
    global _daemon
    with _lock:
        for last in (False, True):  # a daemon may die between the check and the write
            try:
                if _daemon is None or not _daemon.holds:
                    _daemon = _Owner()
                    atexit.register(_daemon.dismiss)
                _daemon.knows(root.resolve())
                return
            except OSError as error:
                if last:
                    raise SandboxError(
                        f"no process can be started that cleans up after this one: {error}"
                    ) from error


def cleanup_daemons(owner: int) -> list[int]:
    """The living cleanup daemons of a living process, by its pid: for tests that kill both."""
    found = []
    for pid in procfs.tree(owner):
        with suppress(OSError):
            if b"sandboxes.cleanup_daemon" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def main() -> None:
    owner = Owner(**json.loads(sys.argv[1]))
    roots, exited_normally = _listen(owner)
    if exited_normally and not any(record.owner == owner for root in roots for record in records(root)):
        return
    while not owner.is_dead():  # the message, or the closed pipe, arrives a moment before the owner is dead
        time.sleep(_POLL_INTERVAL_S)
    for root in roots:
        try:
            found = reap(root, patience_s=_BUSY_S)
        except OSError as error:
            _log("error", "sandboxes.left", root=str(root), detail=str(error))
            continue
        if found.sandboxes:
            counts = {"sandboxes": found.sandboxes, "processes": found.processes}
            _log("warning", "sandboxes.reaped", root=str(root), **counts)
        for failure in found.failures:
            _log("error", "sandboxes.left", root=str(root), detail=failure)


def _listen(owner: Owner) -> tuple[list[Path], bool]:
    """Read from the owner until it has ended its input or is dead. Returns its roots, and whether it exited normally. A child that it forked may
    hold the owner's end of the pipe, so the end of the pipe alone is not awaited."""
    received, at_end = b"", False
    os.set_blocking(0, False)
    with suppress(ProcessLookupError):
        # If the pid was reused, the owner is dead, and its last lines are in the pipe.
        owner_pidfd = os.pidfd_open(owner.pid)
        while not at_end and not owner.is_dead():
            ready, _, _ = select.select([0, owner_pidfd], [], [])
            at_end = 0 in ready and not (part := os.read(0, _READ))
            received += b"" if at_end or 0 not in ready else part
            if b"\n\n" in received or received == b"\n":
                break
    with suppress(BlockingIOError):
        while part := os.read(0, _READ):
            received += part
    lines = received.decode().split("\n")[:-1]
    return [Path(json.loads(line)) for line in lines if line], "" in lines


def _log(level: str, event: str, **facts: object) -> None:
    """Write to the owner's log, in its format. A full disk does not prevent the cleanup."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = {"component": "sandboxes.cleanup_daemon", **facts, "event": event, "level": level, "timestamp": at}
    with suppress(OSError):
        print(json.dumps(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
