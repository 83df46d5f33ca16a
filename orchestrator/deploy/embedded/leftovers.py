"""Finds and ends processes that a killed supervisor, or a dead process, left running.

Two proofs are accepted, never a bare pid: the pid with its start time in `run/<name>.pid`, and the mark that every supervised process and
its descendants carry in their environment (run directory and process name), which also finds children that left their group.
"""

import os
import signal
import time
from pathlib import Path

import anyio
import msgspec

from orchestrator.deploy.embedded.identity import ProcessId, write_atomically
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.runtime.failpoints import PROCESS
from sandboxes import procfs

_MARK = "PENSTOCK_SUPERVISED"


class PidRecord(msgspec.Struct, frozen=True):
    """The content of `run/<name>.pid`: the process, and the signal that ends it cleanly."""

    process: ProcessId
    stop_signal: int

    def write(self, path: Path) -> None:
        write_atomically(path, msgspec.json.encode(self))


def find_leftovers(layout: RunLayout) -> dict[ProcessId, signal.Signals]:
    """Living processes of a dead supervisor of this run directory, each with the signal that ends it cleanly.

    Call it only while holding the supervisor's lock. Never contains this process or one of its ancestors.
    """
    lineage = _lineage()
    found: dict[ProcessId, signal.Signals] = {}
    for path in layout.run.glob("*.pid"):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=PidRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            continue
        if record.process.alive and record.process.pid not in lineage:
            found[record.process] = signal.Signals(record.stop_signal)
    for process in _marked(layout.root, None):
        if process.pid not in lineage:
            found.setdefault(process, signal.SIGTERM)
    return found


def mark(layout: RunLayout, name: str) -> dict[str, str]:
    """The environment that marks a process called `name` and its descendants. Its failpoints use the name, too."""
    return {_MARK: f"{layout.root}#{name}", PROCESS: name}


def kill_descendants(layout: RunLayout, name: str) -> int:
    """SIGKILL to all processes that a dead supervised process left, in its process group or not. Returns how many there were. Blocking.

    Call it before the process is restarted: the mark does not distinguish old descendants from new ones.
    """
    killed: set[ProcessId] = set()
    patience = time.monotonic() + 5.0  # a process stuck in the kernel dies later; this does not wait for it
    while (remaining := _marked(layout.root, name)) and time.monotonic() < patience:
        for process in remaining:  # repeatedly, because dying processes may have started others
            process.send(signal.SIGKILL)
        killed.update(remaining)
        time.sleep(0.005)
    return len(killed)


def _marked(root: Path, name: str | None) -> list[ProcessId]:
    """Living processes that carry the mark of a run directory, or of one process in it. Those of other users are visible only to root."""
    start = f"{_MARK}={root}#".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            identity = ProcessId.of(int(entry.name))
            variables = (entry / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        names = [os.fsdecode(variable[len(start) :]) for variable in variables if variable.startswith(start)]
        if names and name in (None, *names) and identity.alive:
            found.append(identity)
    return found


async def end_leftovers(layout: RunLayout, *, grace_s: float = 5.0) -> int:
    """Ends every leftover, first by its stop signal, after `grace_s` by SIGKILL, and removes the pid files. Returns how many there were.
    Raises ValueError if one cannot be ended."""
    found = find_leftovers(layout)
    for process, stop_signal in found.items():
        process.send(stop_signal)
    with anyio.move_on_after(grace_s):
        for process in found:
            await process.gone(grace_s)
    # Leftovers may have started others before they died: look again.
    for process in {**found, **find_leftovers(layout)}:
        process.send(signal.SIGKILL)
        if not await process.gone(5.0):
            raise ValueError(
                f"process {process.pid} of an earlier run cannot be ended; end it, then start again"
            )
    for path in layout.run.glob("*.pid"):
        path.unlink(missing_ok=True)
    return len(found)


def _lineage() -> set[int]:
    """This process and its ancestors."""
    pids: set[int] = set()
    pid = os.getpid()
    while pid > 0:
        pids.add(pid)
        found = procfs.stat(pid)
        pid = found.parent if found is not None else 0
    return pids
