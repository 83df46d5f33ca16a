"""Processes of the stack and of its sandboxes: found by the supervisor's status file, signalled through their identity."""

import signal
from pathlib import Path

from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.process_spec import ProcessState
from orchestrator.deploy.embedded.supervisor import read_status

SANDBOX = "bwrap"


def living(layout: RunLayout, name: str) -> ProcessId | None:
    """The supervised process of that name, if it is ready now."""
    status = read_status(layout)
    for process in status.processes if status is not None else ():
        if process.name == name and process.state is ProcessState.READY and process.pid is not None:
            try:
                return ProcessId.of(process.pid)
            except ProcessLookupError:
                return None
    return None


def family(root: ProcessId) -> list[ProcessId]:
    """A process and all its descendants, itself first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found, pending = [], [root.pid]
    while pending:
        pid = pending.pop()
        try:
            found.append(ProcessId.of(pid))
        except ProcessLookupError:
            continue
        pending += children.get(pid, [])
    return found


def sandboxes(runner: ProcessId) -> list[ProcessId]:
    """The outermost process of each sandbox below a runner."""
    inside = family(runner)
    names = {process.pid: _name(process.pid) for process in inside}
    return [
        process
        for process in inside
        if names[process.pid] == SANDBOX and names.get(_parent(process.pid) or 0) != SANDBOX
    ]


def send(processes: list[ProcessId], number: signal.Signals) -> int:
    """Signal each process; returns how many were still alive."""
    return sum(process.send(number) for process in processes)


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _parent(pid: int) -> int | None:
    text = _stat(pid)
    return int(text[text.rindex(")") + 2 :].split()[1]) if text else None


def _name(pid: int) -> str:
    text = _stat(pid)
    return text[text.index("(") + 1 : text.rindex(")")] if text else ""
