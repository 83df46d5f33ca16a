"""Resource usage of a program's processes, measured from outside."""

from __future__ import annotations

import contextlib
import os
import resource

from orchestrator.tasks.held.confine import shared_objects

_PAGE = os.sysconf("SC_PAGESIZE")
_TICK = os.sysconf("SC_CLK_TCK")
SHM = "/dev/shm"


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for member in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{member}/task"):
                with open(f"/proc/{member}/task/{task}/children", encoding="ascii") as file:
                    found += map(int, file.read().split())
    return found


def cpu_s(pids: list[int]) -> float:
    """CPU seconds of these processes, of the children they waited for, and of our own ended children."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
            ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ticks / _TICK + used.ru_utime + used.ru_stime


def memory(pids: list[int], enough: int, *, shared: bool) -> int:
    """Bytes private to the processes or shared among them. If a first sum is above `enough`, a slower and more exact measurement follows."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:
            columns = file.read().split()
            total += (int(columns[1]) - int(columns[2])) * _PAGE
    held = in_shm() + sum(size for _, _, size in shared_objects()) if shared else 0
    if total + held <= enough:
        return total + held
    proportional = [_proportional(pid) for pid in pids]
    # Mapped parts of the shared files count once.
    return sum(own for own, _ in proportional) + max(held, sum(mapped for _, mapped in proportional))


def _proportional(pid: int) -> tuple[int, int]:
    """Private and shared memory; each process gets its proportional part of shared pages."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        sizes = {line.partition(b":")[0]: line.split()[1] for line in file if b"kB" in line}
        return int(sizes[b"Pss_Anon"]) << 10, int(sizes[b"Pss_Shmem"]) << 10
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:
        columns = file.read().split()  # of a process without smaps_rollup
        return (int(columns[1]) - int(columns[2])) * _PAGE, 0
    return 0, 0


def in_shm() -> int:
    """Bytes of files in /dev/shm."""
    with contextlib.suppress(OSError):
        status = os.statvfs(SHM)
        return (status.f_blocks - status.f_bfree) * status.f_frsize
    return 0
