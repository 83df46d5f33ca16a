"""The processes of a run by role, read from /proc.

A role is a name of the supervisor's status, `supervisor`, or `sandboxes`: all programs below the runners. PostgreSQL's backends are one role with
its first process. Memory is anonymous memory, proportional where it is shared (`Pss_Anon`): what a leak fills. Files that are mapped, and
PostgreSQL's shared buffers, which fill up to their size, are not in it.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.deploy.embedded.process_spec import ProcessState, SupervisorStatus

SANDBOX = "bwrap"
SUPERVISOR, SANDBOXES = "supervisor", "sandboxes"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Of all processes of one role together: bytes, numbers, CPU seconds since their start (with ended children, for PostgreSQL and sandboxes).
    `pid`: its first process, 0 for sandboxes."""

    pid: int
    memory: int = 0
    descriptors: int = 0
    threads: int = 0
    processes: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    name: str
    parent: int
    own_s: float
    children_s: float
    threads: int


def roles(status: SupervisorStatus) -> dict[str, Role]:
    """Every role of a living run. A process that ends during this is left out."""
    stats = dict(_stats())
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found = {}
    if status.supervisor.pid in stats:
        found[SUPERVISOR] = _role(stats, status.supervisor.pid, [])
    programs_s, programs = 0.0, 0
    for process in status.processes:
        if process.state is not ProcessState.READY or process.pid not in stats:
            continue
        below = list(_below(process.pid, children))
        inside = [pid for pid in below if _in_sandbox(pid, stats)]
        if process.name == ProcessRole.POSTGRES:
            role = _role(stats, process.pid, below)
            ended_s = stats[process.pid].children_s
            found[process.name] = Role(
                pid=role.pid,
                memory=role.memory,
                descriptors=role.descriptors,
                threads=role.threads,
                processes=role.processes,
                cpu_s=role.cpu_s + ended_s,
            )
            continue
        found[process.name] = _role(stats, process.pid, [pid for pid in below if pid not in inside])
        programs += len(inside)
        if inside or process.name in WORKERS:
            programs_s += stats[process.pid].children_s + sum(stats[pid].own_s for pid in inside)
    found[SANDBOXES] = Role(pid=0, processes=programs, cpu_s=programs_s)
    return found


def _role(stats: Mapping[int, _Stat], first: int, others: list[int]) -> Role:
    memory = descriptors = 0
    for pid in (first, *others):
        memory += _anonymous(pid)
        descriptors += _count(Path(f"/proc/{pid}/fd"))
    living = [stats[pid] for pid in (first, *others)]
    return Role(
        pid=first,
        memory=memory,
        descriptors=descriptors,
        threads=sum(stat.threads for stat in living),
        processes=len(living),
        cpu_s=sum(stat.own_s for stat in living),
    )


def _stats() -> Iterator[tuple[int, _Stat]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                text = Path(f"/proc/{entry.name}/stat").read_text(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            words = text[text.rindex(")") + 2 :].split()
            yield (
                int(entry.name),
                _Stat(
                    name=text[text.index("(") + 1 : text.rindex(")")],
                    parent=int(words[1]),
                    own_s=(int(words[11]) + int(words[12])) * _TICK_S,
                    children_s=(int(words[13]) + int(words[14])) * _TICK_S,
                    threads=int(words[17]),
                ),
            )


def _below(pid: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    for child in children.get(pid, ()):
        yield child
        yield from _below(child, children)


def _in_sandbox(pid: int, stats: Mapping[int, _Stat]) -> bool:
    while pid in stats:
        if stats[pid].name == SANDBOX:
            return True
        pid = stats[pid].parent
    return False


def _anonymous(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:")), 0)


def _count(directory: Path) -> int:
    try:
        return len(os.listdir(directory))
    except (FileNotFoundError, ProcessLookupError):
        return 0
