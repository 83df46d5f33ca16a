"""One reading of a run: everything that might grow, by what it is of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ops.lab.benchmarks.soak import places, processes
from orchestrator.deploy.embedded.process_spec import SupervisorStatus
from orchestrator.deploy.home import Home


class Figure(StrEnum):
    """The readings. Of each role, of each part of the directory, of the kernel."""

    MEMORY = "memory"
    DESCRIPTORS = "descriptors"
    THREADS = "threads"
    PROCESSES = "processes"
    CPU = "CPU"
    DISK = "disk"
    KERNEL = "kernel"


Key = tuple[Figure, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """`at`: seconds since the first one. `rollouts`: ended so far. `restarts`: of all processes, by the supervisor."""

    at: float
    rollouts: int
    restarts: int
    values: Mapping[Key, float]


def read(home: Home, status: SupervisorStatus) -> dict[Key, float]:
    """All values now; takes about 50 ms."""
    roles = processes.roles(status)
    values: dict[Key, float] = {}
    for name, role in roles.items():
        values[Figure.CPU, name] = role.cpu_s
        if name != processes.SANDBOXES:
            values |= {
                (Figure.MEMORY, name): role.memory,
                (Figure.DESCRIPTORS, name): role.descriptors,
                (Figure.THREADS, name): role.threads,
            }
        values[Figure.PROCESSES, name] = role.processes
    values |= {(Figure.DISK, name): held for name, held in places.disk(home).items()}
    pids = [role.pid for role in roles.values() if role.pid]
    values |= {(Figure.KERNEL, name): number for name, number in places.kernel(home, pids).items()}
    return values


def later(samples: Sequence[Sample]) -> list[Sample]:
    """The last two thirds of the time: without what a run fills once, at its start."""
    if not samples:
        return []
    begin, end = samples[0].at, samples[-1].at
    return [sample for sample in samples if sample.at >= begin + (end - begin) / 3]


def series(samples: Sequence[Sample]) -> Iterator[tuple[Key, list[float], list[float]]]:
    """(key, rollouts, values) of everything that was read, where it was read."""
    keys = dict.fromkeys(key for sample in samples for key in sample.values)
    for key in keys:
        there = [sample for sample in samples if key in sample.values]
        yield key, [float(sample.rollouts) for sample in there], [sample.values[key] for sample in there]
