"""Checks of ends: whatever a program leaves behind is dead, however it, its sandbox or its owner ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import anyio

from sandboxes import procfs
from sandboxes.base import KilledBy, Provider, SandboxSpec
from sandboxes.conformance.registry import check, fail, long_sleep, require, shell, sleepers
from sandboxes.heir import heirs

# A grandchild in a session of its own, its parent gone: what a program does to be forgotten.
_DAEMON = "(setsid sh -c 'sleep {0} & sleep {0}' >/dev/null 2>&1 &)"


@check()
async def a_daemon_left_behind_is_dead_when_exec_returns(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        for end, timeout in (("exit 0", 30.0), ("sleep 100", 0.5)):
            seconds = long_sleep()
            result = await shell(sandbox, f"{_DAEMON.format(seconds)}; sleep 0.1; {end}", timeout)
            require(result.wall_s < 10, result)
            require(result.timed_out == (timeout < 1), result)
            require(not sleepers(seconds), f"alive after {end!r}: {sleepers(seconds)}")


@check()
async def a_daemon_that_holds_the_output_does_not_hold_exec(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        seconds = long_sleep()
        result = await shell(sandbox, f"sleep {seconds} & echo over")
        require(result.ok and result.stdout == b"over\n" and result.wall_s < 10, result)
        require(not sleepers(seconds), "the daemon is alive")


@check()
async def cancelling_exec_ends_the_program(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        seconds = long_sleep()
        with anyio.move_on_after(0.3):
            await shell(sandbox, f"{_DAEMON.format(seconds)}; sleep 100")
        require(not sleepers(seconds), "alive after cancelling")
        require((await sandbox.exec(["true"])).ok, "the sandbox is unusable afterwards")


@check()
async def closing_ends_every_program(provider: Provider) -> None:
    seconds = long_sleep()
    async with provider.open(SandboxSpec()) as sandbox:
        process = await sandbox.start(["sh", "-c", f"{_DAEMON.format(seconds)}; echo ready; sleep {seconds}"])
        require(await process.read() == (b"ready\n", b""), "the program did not start")
        require(await _seen(seconds), "the check cannot see the program")
    require(not sleepers(seconds), "alive after closing")
    require((await process.wait()).killed_by is KilledBy.CALLER, "not ended by closing")
    await sandbox.close()
    try:
        await sandbox.exec(["true"])
    except ValueError:
        return
    fail("a closed sandbox runs programs")


@check(isolation=True)
async def programs_die_with_a_killed_owner(provider: Provider) -> None:
    seconds = long_sleep()
    reference = f"{type(provider).__module__}:{type(provider).__qualname__}"
    command = [sys.executable, "-m", "sandboxes.conformance.victim", reference, _DAEMON.format(seconds)]
    async with await anyio.open_process(command, stderr=None) as victim:
        try:
            assert victim.stdout is not None
            said = await victim.stdout.receive()
            require(said == b"ready\n" and await _seen(seconds), f"the victim said {said!r}")
        finally:
            procfs.kill(heirs(victim.pid))  # the kernel has to do it alone
            victim.kill()
    with anyio.move_on_after(3):
        while sleepers(seconds):
            await anyio.sleep(0.01)
        return
    left = sleepers(seconds)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    fail(f"{len(left)} processes were alive 3 s after their owner was killed")


async def _seen(seconds: str) -> bool:
    """Whether a process that is just starting comes to be seen."""
    with anyio.move_on_after(5):
        while not sleepers(seconds):
            await anyio.sleep(0.01)
        return True
    return False
