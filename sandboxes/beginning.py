"""The state in which every program of every sandbox begins, as a program sees it in /proc. `confine.settle` and `confine.limit` set it.

The process that starts Penstock has a umask, ignored signals, limits and a niceness of its own. None of them may decide a reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sandboxes.inside.confine import FIXED_LIMITS, NO_LIMIT, Resource

UMASK: Final = "0022"
NICENESS: Final = "0"
NAMES: Final[Mapping[Resource, str]] = {
    Resource.CORE: "Max core file size",
    Resource.NOFILE: "Max open files",
    Resource.STACK: "Max stack size",
    Resource.MEMLOCK: "Max locked memory",
    Resource.AS: "Max address space",
    Resource.RSS: "Max resident set",
    Resource.LOCKS: "Max file locks",
    Resource.SIGPENDING: "Max pending signals",
    Resource.MSGQUEUE: "Max msgqueue size",
    Resource.NICE: "Max nice priority",
    Resource.RTPRIO: "Max realtime priority",
    Resource.RTTIME: "Max realtime timeout",
}
"""The lines of /proc/PID/limits."""


def parse_limits(text: str) -> dict[str, tuple[str, str]]:
    """name → (soft, hard) of /proc/PID/limits."""
    return {
        line[:26].strip(): (line[26:47].strip(), line[47:68].strip())
        for line in text.splitlines()
        if line.startswith("Max ")
    }


def shown(most: int) -> str:
    """A limit as /proc shows it."""
    return "unlimited" if most == NO_LIMIT else str(most)


def differences(limits: Mapping[str, tuple[str, str]], niceness: str) -> Iterator[str]:
    """The values with which a program begins instead of the fixed ones, one clause each. Only a privileged process can raise limits and lower a
    niceness."""
    for number, name in NAMES.items():
        wanted = tuple(map(shown, FIXED_LIMITS[number]))
        if name in limits and limits[name] != wanted:
            yield f"{name.removeprefix('Max ')}: {' and '.join(limits[name])} (soft and hard) in place of {' and '.join(wanted)}"
    if niceness != NICENESS:
        yield f"niceness: {niceness} in place of {NICENESS}"
