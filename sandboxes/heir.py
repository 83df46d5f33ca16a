"""The heir: a small process beside every owner of sandboxes, which ends and removes what a killed owner leaves.

The kernel ends an isolated program with its owner, but not one whose owner is killed in the milliseconds in which bubblewrap
starts, before it has asked for that; and nobody removes files and control groups. Without an heir both wait for the next start.

The owner writes the roots of its sandboxes into the heir's standard input, one a line, and keeps it open. Whatever ends the
owner closes it. A last empty line says that the owner ends by itself and leaves nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from sandboxes.base import SandboxError
from sandboxes.owner import Owner
from sandboxes.reap import reap

_END_S = 5.0
_LOOK_S = 0.005


class _Appointment:
    """The living heir of this process, and the roots that it knows."""

    def __init__(self) -> None:
        here = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        self.owner = os.getpid()
        self._roots: set[Path] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(asdict(Owner.current()))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # no signal to the owner's group reaches it
        )

    @property
    def holds(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def knows(self, root: Path) -> None:
        if root not in self._roots:
            self._say(f"{json.dumps(str(root))}\n")
            self._roots.add(root)

    def dismiss(self) -> None:
        if self.holds:
            with suppress(OSError):
                self._say("\n")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()


_appointed: _Appointment | None = None
_lock = threading.Lock()


def appoint(root: Path) -> None:
    """From now on what this process leaves below `root` is removed as soon as it is killed. Cheap once that is so; blocks for
    milliseconds the first time, and when the heir itself was killed.

    Raises SandboxError when no heir can be started.
    """
    global _appointed
    with _lock:
        try:
            if _appointed is None or not _appointed.holds:
                _appointed = _Appointment()
                atexit.register(_appointed.dismiss)
            _appointed.knows(root.resolve())
        except OSError as error:
            raise SandboxError(f"no process can be started that cleans up after this one: {error}") from error


def main() -> None:
    owner = Owner(**json.loads(sys.argv[1]))
    roots: list[Path] = []
    for line in sys.stdin:
        if not line.strip():
            return
        roots.append(Path(json.loads(line)))
    while not owner.is_dead():  # its files are closed a moment before it is gone
        time.sleep(_LOOK_S)
    for root in roots:
        try:
            found = reap(root)
        except (OSError, SandboxError) as error:
            _log("error", "sandboxes.not_reaped", root=str(root), detail=str(error))
            continue
        if found.sandboxes:
            _log(
                "warning",
                "sandboxes.reaped",
                root=str(root),
                sandboxes=found.sandboxes,
                processes=found.processes,
            )


def _log(level: str, event: str, **facts: object) -> None:
    """Into the owner's log, in its form."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    said = {
        "component": __spec__.name if __spec__ else __name__,
        **facts,
        "event": event,
        "level": level,
        "timestamp": at,
    }
    print(json.dumps(said), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
