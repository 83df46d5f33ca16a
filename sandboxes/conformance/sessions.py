"""Checks of what holds a sandbox together: no program ends it in a way that looks like the platform's fault.

A lost sandbox (`SandboxLost`) ends an attempt without a reward, and the attempt runs again: a policy that can cause it repeats what fails.
"""

from __future__ import annotations

import anyio

from sandboxes.base import Limits, Provider, SandboxError, SandboxLost, SandboxSpec
from sandboxes.conformance.registry import check, fail, shell

# One file may be larger than the memory.
_LIMITS = Limits(memory_mb=128, processes=64, disk_mb=1024, wall_s=60.0)
_FILL = "head -c 500000000 /dev/zero >/dev/shm/fill"
_FIRST = "echo 1000 >/proc/1/oom_score_adj"
MEMORY = (
    _FILL,
    f"({_FILL}) >/dev/null 2>&1 & echo began",
    f"({_FIRST}) 2>/dev/null; (sleep 0.2; {_FILL}) >/dev/null 2>&1 & echo began",
    "python3 -c 'held = []\nwhile True: held.append(bytearray(1 << 20))'",
)
"""Programs that use up the memory: by files and by their own, also in the background, and with process 1 as the first that the kernel ends."""
_CRASH = """
import os
held = os.open("/proc/1/mem", os.O_RDWR)
for line in open("/proc/1/maps"):
    words = line.split()
    if words[1].startswith("r-x") and words[-1] not in ("[vdso]", "[vsyscall]"):
        begin, end = (int(number, 16) for number in words[0].split("-"))
        os.pwrite(held, bytes([0xCC]) * (end - begin), begin)
"""
ATTACKS = (
    f"python3 -c '{_CRASH}'; echo x >/proc/1/fd/0",
    "python3 -c 'import resource; resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))'; echo x >/proc/1/fd/0",
    "for signal in KILL TERM INT STOP SEGV CHLD; do kill -$signal 1; done",
)
"""Programs that try to end process 1: by its own instructions and its input, by its limits, by signals."""
_ROUNDS, _PAUSE_S = 5, 0.2


async def _keeps(provider: Provider, script: str) -> None:
    async with provider.open(SandboxSpec(limits=_LIMITS)) as sandbox:
        try:
            await shell(sandbox, script, 20.0)
            for _ in range(_ROUNDS):
                await anyio.sleep(_PAUSE_S)
                await sandbox.exec(["true"])
            await sandbox.changed()
        except SandboxLost as error:
            fail(f"{script!r} passed its end off as the platform's: {error}")
        except SandboxError:
            return  # it counts against the program


@check(isolation=True, escape=True)
async def programs_that_use_up_the_memory_do_not_lose_their_sandbox(provider: Provider) -> None:
    for script in MEMORY:
        await _keeps(provider, script)


@check(isolation=True, escape=True)
async def programs_that_attack_the_first_process_do_not_lose_their_sandbox(provider: Provider) -> None:
    for script in ATTACKS:
        await _keeps(provider, script)
