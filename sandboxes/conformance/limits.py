"""Checks of limits: each is reached and named, and the sandbox and this process survive it."""

from __future__ import annotations

from sandboxes.base import ExecResult, KilledBy, Limits, Provider, SandboxSpec
from sandboxes.conformance.registry import check, fail, require, shell

_CORES = 0.2
_BUSY = """
import os, time
began = time.monotonic()
child = os.fork()
while time.monotonic() < began + 3:
    pass
if child:
    os.wait()
    print(sum(os.times()[:4]) / (time.monotonic() - began))
"""
"""Prints how many cores two busy programs had."""


async def _under(provider: Provider, limits: Limits, script: str) -> ExecResult:
    async with provider.open(SandboxSpec(limits=limits)) as sandbox:
        result = await shell(sandbox, script)
        # A small program fits again, unless the disk was filled up.
        next_result = await sandbox.exec(["true"])
        require(
            next_result.ok or result.killed_by is KilledBy.DISK,
            f"the sandbox is unusable afterwards: {next_result}",
        )
    return result


@check()
async def wall_time_is_limited_and_named(provider: Provider) -> None:
    async with provider.open(SandboxSpec(limits=Limits(wall_s=1.5))) as sandbox:
        for timeout in (None, 1.0):
            for _ in range(3):  # time counts from before the start: a busy machine may not reach the echo
                result = await sandbox.exec(["sh", "-c", "echo early; sleep 100"], timeout_s=timeout)
                require(result.timed_out and result.exit_code == 137 and not result.ok, result)
                if result.stdout:
                    break
            require(result.stdout == b"early\n" and result.wall_s < 10, result)


@check()
async def processor_time_is_limited_and_named(provider: Provider) -> None:
    result = await _under(provider, Limits(cpu_s=0.4), "while :; do :; done")
    require(result.killed_by is KilledBy.CPU and result.wall_s < 25, result)


@check()
async def cores_are_limited(provider: Provider) -> None:
    async with provider.open(SandboxSpec(limits=Limits(cpus=_CORES))) as sandbox:
        if not getattr(getattr(provider, "inner", provider), "limits_cores", True):
            return
        result = await sandbox.exec(["python3", "-c", _BUSY])
    require(result.ok and float(result.stdout) < 2 * _CORES, f"of {_CORES} cores: {result}")


@check()
async def memory_is_limited(provider: Provider) -> None:
    # Without a newline, `tail` keeps everything that it reads.
    result = await _under(provider, Limits(memory_mb=64), "head -c 600000000 /dev/zero | tail >/dev/null")
    require(not result.ok and result.killed_by in (KilledBy.MEMORY, KilledBy.NONE), result)


@check(isolation=True)
async def the_number_of_processes_is_limited(provider: Provider) -> None:
    script = "i=0; while [ $i -lt 80 ]; do sleep 100 & i=$((i+1)); done; echo all"
    result = await _under(provider, Limits(processes=32), script)
    require(b"all" not in result.stdout and not result.ok, result)


@check()
async def one_large_file_reaches_the_disk_limit(provider: Provider) -> None:
    result = await _under(provider, Limits(disk_mb=4), "head -c 20000000 /dev/zero >big")
    require(result.killed_by is KilledBy.DISK, result)


@check()
async def many_files_reach_the_disk_limit(provider: Provider) -> None:
    fill = "for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero >$i; done; sleep 100"
    result = await _under(provider, Limits(disk_mb=4), fill)
    require(result.killed_by is KilledBy.DISK and result.wall_s < 25, result)
    script = "i=0; while [ $i -lt 300 ]; do : >f$i; i=$((i+1)); done; sleep 100"
    result = await _under(provider, Limits(disk_files=100), script)
    require(result.killed_by is KilledBy.DISK and result.wall_s < 25, result)


@check()
async def files_without_a_name_reach_the_disk_limit(provider: Provider) -> None:
    fill = (
        'for i in 3 4 5 6 7 8 9; do eval "exec $i>f; rm f; head -c 1000000 /dev/zero >&$i"; done; sleep 100'
    )
    result = await _under(provider, Limits(disk_mb=4), fill)
    require(result.killed_by is KilledBy.DISK and result.wall_s < 25, result)


@check()
async def programs_too_short_to_be_watched_reach_the_disk_limit(provider: Provider) -> None:
    fill = "for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero >$i; done"
    result = await _under(provider, Limits(disk_mb=4), fill)
    require(result.killed_by is KilledBy.DISK, result)
    async with provider.open(SandboxSpec(limits=Limits(disk_mb=4))) as sandbox:
        for number in range(40):
            result = await shell(sandbox, f"head -c 1000000 /dev/zero >{number}")
            if result.killed_by is KilledBy.DISK:
                return
    fail("forty programs wrote ten times the limit")


@check()
async def what_lies_in_a_closed_directory_counts_for_the_disk_limit(provider: Provider) -> None:
    fill = (
        "mkdir d; for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero >d/$i; done; chmod 000 d; sleep 100"
    )
    result = await _under(provider, Limits(disk_mb=4), fill)
    require(result.killed_by is KilledBy.DISK and result.wall_s < 25, result)


@check()
async def a_bottomless_directory_reaches_the_disk_limit_and_can_be_removed(provider: Provider) -> None:
    script = "i=0; while [ $i -lt 1500 ]; do mkdir d && cd d || exit; i=$((i+1)); done; sleep 100"
    result = await _under(provider, Limits(), script)
    require(result.killed_by is KilledBy.DISK, result)


@check()
async def output_is_cut_and_a_flood_ends_the_program(provider: Provider) -> None:
    limits = Limits(output_bytes=1000)
    result = await _under(provider, limits, "head -c 5000 /dev/zero; head -c 900 /dev/zero >&2")
    require(result.ok and result.truncated, result)
    require((len(result.stdout), len(result.stderr)) == (1000, 900), (len(result.stdout), len(result.stderr)))
    result = await _under(provider, limits, "yes")
    require(result.killed_by is KilledBy.OUTPUT and len(result.stdout) == 1000, result.killed_by)
