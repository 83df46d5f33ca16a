"""Checks of ends: everything that a program leaves behind is dead, however it, its sandbox or its owner ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import anyio

from sandboxes import procfs
from sandboxes.base import KilledBy, Provider, SandboxSpec
from sandboxes.cleanup_daemon import cleanup_daemons
from sandboxes.conformance.registry import check, fail, long_sleep, require, shell, sleepers

# A grandchild in its own session without a parent: a program's way to escape supervision.
_DAEMON = "(setsid sh -c 'sleep {0} & sleep {0}' >/dev/null 2>&1 &)"


@check()
async def a_daemon_of_a_program_that_is_ended_is_dead_when_exec_returns(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        seconds = long_sleep()
        result = await shell(sandbox, f"{_DAEMON.format(seconds)}; sleep 0.1; sleep 100", 0.5)
        require(result.wall_s < 10 and result.timed_out, result)
        require(not sleepers(seconds), f"alive after the timeout: {sleepers(seconds)}")


@check()
async def where_nothing_may_stay_a_daemon_left_behind_is_dead_when_exec_returns(provider: Provider) -> None:
    async with provider.open(SandboxSpec(background=False)) as sandbox:
        for script in (f"{_DAEMON}; sleep 0.1", "sleep {0} & echo over"):
            seconds = long_sleep()
            result = await shell(sandbox, script.format(seconds))
            require(result.ok and result.wall_s < 10, result)
            require(not sleepers(seconds), f"alive after {script!r}: {sleepers(seconds)}")


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
    kind = type(getattr(provider, "inner", provider))
    reference, image = f"{kind.__module__}:{kind.__qualname__}", getattr(provider, "image", "")
    command = [
        sys.executable,
        "-m",
        "sandboxes.conformance.victim",
        reference,
        _DAEMON.format(seconds),
        image,
        getattr(provider, "user", ""),
    ]
    async with await anyio.open_process(command, stderr=None) as victim:
        try:
            assert victim.stdout is not None
            output = await victim.stdout.receive()
            require(output == b"ready\n" and await _seen(seconds), f"the victim printed {output!r}")
        finally:
            procfs.kill(cleanup_daemons(victim.pid))  # the kernel must do it without the cleanup daemon
            victim.kill()
    with anyio.move_on_after(30):
        while sleepers(seconds):
            await anyio.sleep(0.01)
        return
    survivors = sleepers(seconds)
    for pid in survivors:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    fail(f"{len(survivors)} processes were alive 30 s after their owner was killed")


async def _seen(seconds: str) -> bool:
    """Whether a process that is just starting becomes visible."""
    with anyio.move_on_after(30):
        while not sleepers(seconds):
            await anyio.sleep(0.01)
        return True
    return False
