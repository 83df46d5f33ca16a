"""The heir: a small process beside every owner of sandboxes, which ends and removes what a killed owner leaves.

The kernel ends an isolated program with its owner, but not one whose owner is killed in the milliseconds in which bubblewrap
starts, before it has asked for that; and nobody removes files and control groups. Without an heir both wait for another worker
of the machine (flow/tidy.py), or for the next start.

The owner writes the roots of its sandboxes into the heir's standard input, one a line; an empty line says that it ends by itself.
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
_LOOK_S = 0.005
_BUSY_S = 60.0
_READ = 1 << 16


class _Appointed:
    """The living heir of this process, and the roots that it knows."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._roots: set[Path] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sandboxes.heir", json.dumps(asdict(Owner.current()))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            # Nothing of its owner's: neither secrets nor the mark by which a supervisor kills what a dead process left.
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
        """It ends, unless something of its owner's is left: then it stays, and outlives its owner as after a kill."""
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
_appointed: _Appointed | None = None
_lock = threading.Lock()


def appoint(root: Path) -> None:
    """From now on what this process leaves below `root` is removed as soon as it is killed. Cheap once that is so; blocks for
    milliseconds the first time, and after the heir itself was killed.

    Raises SandboxError when no heir can be started.
    """
    global _appointed
    with _lock:
        for last in (False, True):  # an heir may die between the look at it and the word to it
            try:
                if _appointed is None or not _appointed.holds:
                    _appointed = _Appointed()
                    atexit.register(_appointed.dismiss)
                _appointed.knows(root.resolve())
                return
            except OSError as error:
                if last:
                    raise SandboxError(
                        f"no process can be started that cleans up after this one: {error}"
                    ) from error


def heirs(owner: int) -> list[int]:
    """The living heirs of a living process, by its number: for tests that kill both."""
    found = []
    for pid in procfs.tree(owner):
        with suppress(OSError):
            if b"sandboxes.heir" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def main() -> None:
    owner = Owner(**json.loads(sys.argv[1]))
    roots, dismissed = _listen(owner)
    if dismissed and not any(record.owner == owner for root in roots for record in records(root)):
        return
    while not owner.is_dead():  # told, or its files were closed, a moment before it is gone
        time.sleep(_LOOK_S)
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
    """What the owner says until it is silent or dead: its roots, and whether it ended by itself. A child that it forked may hold its end
    of the pipe, so the end of the pipe alone is not waited for."""
    said, ended = b"", False
    os.set_blocking(0, False)
    with suppress(ProcessLookupError):
        life = os.pidfd_open(
            owner.pid
        )  # of whoever has the number now: then the owner is dead, and its last words are in the pipe
        while not ended and not owner.is_dead():
            ready, _, _ = select.select([0, life], [], [])
            ended = 0 in ready and not (part := os.read(0, _READ))
            said += b"" if ended or 0 not in ready else part
            if b"\n\n" in said or said == b"\n":
                break
    with suppress(BlockingIOError):
        while part := os.read(0, _READ):
            said += part
    lines = said.decode().split("\n")[:-1]
    return [Path(json.loads(line)) for line in lines if line], "" in lines


def _log(level: str, event: str, **facts: object) -> None:
    """Into the owner's log, in its form. A full disk does not keep anybody from cleaning up."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    said = {"component": "sandboxes.heir", **facts, "event": event, "level": level, "timestamp": at}
    with suppress(OSError):
        print(json.dumps(said), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
