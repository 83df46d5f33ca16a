"""The cores that this process may use. A machine has more than a container's limit or a batch job's affinity allows."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def usable_cores(groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores of this process's affinity, or of the smallest quota of its control groups, rounded up. At least 1."""
    return min([len(os.sched_getaffinity(0)), *map(math.ceil, _quotas(groups, mount))])


def _quotas(groups: Path, mount: Path) -> Iterator[float]:
    """The quotas, in cores, of our control groups and those above. In a container the path may be the host's: then only the mount itself exists."""
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = mount / "cpu" if controllers else mount
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                with suppress(OSError, ValueError):  # no such group or file; "max"
                    yield _quota(top.joinpath(*parts[:depth]), version=1 if controllers else 2)


def _quota(directory: Path, *, version: int) -> float:
    """The quota of one group in cores. OSError without a group; ValueError without a quota."""
    if version == 2:
        quota, period = (directory / "cpu.max").read_text().split()
    else:
        quota, period = ((directory / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    if int(quota) <= 0:
        raise ValueError("no quota")
    return int(quota) / int(period)
