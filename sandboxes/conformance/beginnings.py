"""Checks of the state in which a program begins: the fixed one of beginning.py, whatever the process that starts Penstock has of its own."""

from __future__ import annotations

import json
import os
import resource
import sys

import anyio

from sandboxes.base import WORK, Provider
from sandboxes.beginning import NAMES, NICENESS, UMASK, differences
from sandboxes.conformance.registry import check, require
from sandboxes.conformance.starter import ODDITIES, OF_ROOT, observed
from sandboxes.inside.confine import FIXED_LIMITS, allowed, may_raise

_AT_ONCE = 3
_NO_SIGNAL = "0" * 16


@check()
async def programs_begin_in_the_documented_state(provider: Provider) -> None:
    found = await observed(provider)
    # Where programs are not children of this machine's root, some process without the right to lower its niceness starts them.
    undone = os.geteuid() == 0 and getattr(provider, "live_binds", False)
    niceness = (
        NICENESS if undone or found["niceness"] == NICENESS else str(os.getpriority(os.PRIO_PROCESS, 0))
    )
    fixed = {
        "umask": UMASK, "SigBlk": _NO_SIGNAL, "SigIgn": _NO_SIGNAL, "niceness": niceness, "scheduler": "0", "terminal": "0", "session": "1",
        "descriptors": "0 1 2", "directory": WORK, "made": "644 755", "given": "644 755 755 755",
    }  # fmt: skip
    if not getattr(provider, "own_system", False):  # an image has its own
        fixed |= {"zone": "UTC00", "LANG": "C.UTF-8"}
    wrong = {name: found.get(name) for name, value in fixed.items() if found.get(name) != value}
    require(not wrong, f"programs begin with {wrong} in place of { ({name: fixed[name] for name in wrong}) }")
    limits = {name: (found[name].split()[0], found[name].split()[-1]) for name in NAMES.values()}
    odd = [*differences(limits, NICENESS)]
    require(not odd or _lacking(), f"programs begin with {odd}")


def _lacking() -> bool:
    """Whether our own hard limits are too low, and not ours to raise."""
    able = (allowed(pair, resource.getrlimit(number)[1]) == pair for number, pair in FIXED_LIMITS.items())
    return not (may_raise() or all(able))


@check()
async def programs_begin_in_one_state_for_every_starter(provider: Provider) -> None:
    kind = type(getattr(provider, "inner", provider))
    choice = (
        f"{kind.__module__}:{kind.__qualname__}",
        getattr(provider, "image", ""),
        getattr(provider, "user", ""),
    )
    found: dict[str, dict[str, str]] = {}
    free = anyio.CapacityLimiter(_AT_ONCE)

    async def start(oddity: str) -> None:
        command = [sys.executable, "-m", "sandboxes.conformance.starter", oddity, *choice]
        async with free:
            ended = await anyio.run_process(command, check=False)
        require(ended.returncode == 0, f"the starter with {oddity} ended with {ended.stderr[-500:]!r}")
        found[oddity] = json.loads(ended.stdout)

    oddities = {**ODDITIES, **(OF_ROOT if os.geteuid() == 0 else {})}
    async with anyio.create_task_group() as group:
        for oddity in oddities:
            group.start_soon(start, oddity)
    usual = found[next(iter(oddities))]
    for oddity, state in found.items():
        odd = {
            name: (state.get(name), usual.get(name))
            for name in {*state, *usual}
            if state.get(name) != usual.get(name)
        }
        require(not odd, f"by a starter with {oddity}, programs begin with (found, usual): {odd}")
