"""What /proc says about processes on this machine: who descends from whom, what they use, whose they are."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARKER = "PENSTOCK_SANDBOX"
"""Environment variable of the processes that carry a sandbox; its value is the sandbox's id."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Stat:
    """A line of /proc/PID/stat: state letter, CPU seconds with waited-for children, start in ticks since boot."""

    state: str
    cpu_s: float
    start: int
    resident_bytes: int


def stat(pid: int) -> Stat | None:
    """None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name may hold spaces and parentheses
    return Stat(fields[0], sum(map(int, fields[11:15])) / _TICKS, int(fields[19]), int(fields[21]) * _PAGE)


def tree(pid: int) -> list[int]:
    """`pid` and its descendants, those that still have their parents."""
    found = [pid]
    for parent in found:  # grows while it is read
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{parent}/task"):
                children = Path(f"/proc/{parent}/task/{task}/children").read_text()
                found.extend(int(child) for child in children.split())
    return found


def use(pids: list[int]) -> tuple[float, int]:
    """(CPU seconds, resident bytes) of some processes together; shared pages count for each."""
    stats = [found for pid in pids if (found := stat(pid)) is not None]
    return sum(each.cpu_s for each in stats), sum(each.resident_bytes for each in stats)


def marked(variable: str, value: str) -> Iterator[int]:
    """Processes that were started with this environment variable set to this value."""
    wanted = f"{variable}={value}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # gone, or another user's
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    yield int(name)


def owned_by(uid: int) -> Iterator[int]:
    """Living processes of a user."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found = stat(int(name)) if os.stat(f"/proc/{name}").st_uid == uid else None
                if found is not None and found.state not in "ZX":
                    yield int(name)


def kill(pids: Iterable[int]) -> int:
    """SIGKILL to each of them; how many there were. Zombies are dead already and do not count."""
    count = 0
    for pid in pids:
        found = stat(pid)
        if found is None or found.state in "ZX":
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count
