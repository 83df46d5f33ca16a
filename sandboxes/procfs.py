"""Processes on this machine, from /proc: their descendants, use and users."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MARKER = "PENSTOCK_SANDBOX"
"""Environment variable of the processes that run a sandbox; its value is the sandbox's id."""
_ROUNDS = 50
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_EXITING = 0x4  # PF_EXITING of include/linux/sched.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """A line of /proc/PID/stat: state letter, flags of the kernel, CPU seconds with and of waited-for children, start in ticks since boot."""

    state: str
    parent: int
    flags: int
    cpu_s: float
    waited_cpu_s: float
    start: int
    resident_bytes: int

    @property
    def gone(self) -> bool:
        """Whether it is a zombie, or dead and about to vanish: nothing of it runs any more."""
        return self.state in "ZX"


def stat(pid: int) -> Stat | None:
    """None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name may contain spaces and parentheses
    return Stat(
        state=fields[0],
        parent=int(fields[1]),
        flags=int(fields[6]),
        cpu_s=sum(map(int, fields[11:15])) / _TICKS,
        waited_cpu_s=sum(map(int, fields[13:15])) / _TICKS,
        start=int(fields[19]),
        resident_bytes=int(fields[21]) * _PAGE,
    )


def ended(pid: int) -> bool:
    """Whether it is gone or a zombie."""
    found = stat(pid)
    return found is None or found.gone


def dying(pid: int) -> bool:
    """Whether it is gone or is exiting: process 1 of a namespace exits only when all others there are dead."""
    found = stat(pid)
    return found is None or bool(found.flags & _EXITING)


def tree(pid: int) -> list[int]:
    """`pid` and its descendants that still have their parents."""
    found = [pid]
    for parent in found:  # grows during the loop
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{parent}/task"):
                children = Path(f"/proc/{parent}/task/{task}/children").read_text()
                found.extend(int(child) for child in children.split())
    return found


def use(pids: list[int]) -> tuple[float, int]:
    """(CPU seconds, resident bytes) of some processes together; shared pages count for each."""
    stats = [found for pid in pids if (found := stat(pid)) is not None]
    return sum(each.cpu_s for each in stats), sum(each.resident_bytes for each in stats)


def mapped_memory_files(pids: Iterable[int]) -> int:
    """The part of the resident bytes of some processes that belongs to memory files and shared memory; shared pages count for each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
                if line.startswith("RssShmem:"):
                    total += int(line.split()[1]) << 10
    return total


def marked(variable: str, value: str) -> Iterator[int]:
    """Processes that were started with this environment variable set to this value."""
    assignment = f"{variable}={value}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # gone, or another user's
                if assignment in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    yield int(name)


def owned_by(uid: int, users: int = 1) -> Iterator[int]:
    """Living processes of a user, or of several with consecutive numbers."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found = stat(int(name)) if 0 <= os.stat(f"/proc/{name}").st_uid - uid < users else None
                if found is not None and not found.gone:
                    yield int(name)


def halt(find: Callable[[], Iterable[int]]) -> None:
    """SIGKILL to all processes that `find` returns. All are stopped first, so that none escapes by forking."""
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        running = set(find()) - stopped
        if not running:
            break
        send(running, signal.SIGSTOP)
        stopped |= running
    send(stopped, signal.SIGKILL)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each of them that exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill(pids: Iterable[int]) -> int:
    """SIGKILL to each of them. Returns how many there were. Zombies are dead already and do not count."""
    count = 0
    for pid in pids:
        found = stat(pid)
        if found is None or found.gone:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count
