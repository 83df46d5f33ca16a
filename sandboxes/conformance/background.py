"""Checks of background processes: later programs find them, limits apply to them, and they are gone before files are read."""

from __future__ import annotations

import time

import anyio

from sandboxes.base import KilledBy, Limits, Provider, Sandbox, SandboxSpec
from sandboxes.conformance.registry import check, long_sleep, output, require, shell, sleepers

_SERVER = """
import socket, sys
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
open("port.new", "w").write(str(s.getsockname()[1]))
import os; os.rename("port.new", "port")
while True:
    c, _ = s.accept(); c.sendall(b"served"); c.close()
"""
_ASK = """
import socket
print(socket.create_connection(("127.0.0.1", int(open("port").read())), 5).recv(9).decode())
"""
_PORT = "while [ ! -e port ]; do sleep 0.02; done"


async def _serve(sandbox: Sandbox, how: str = '"$0" -c "$1" &') -> None:
    result = await sandbox.exec(["sh", "-c", f"{how}\n{_PORT}", "python3", _SERVER], timeout_s=30)
    require(result.ok, f"the server did not start: {result}")


async def _fetch(sandbox: Sandbox) -> bytes:
    return (await sandbox.exec(["python3", "-c", _ASK], timeout_s=30)).stdout


async def _alive(seconds: str) -> bool:
    """Wait until a program that was forked has become the one that sleeps."""
    with anyio.move_on_after(30):
        while not sleepers(seconds):
            await anyio.sleep(0.02)
        return True
    return False


async def _dead(seconds: str) -> bool:
    with anyio.move_on_after(10):
        while sleepers(seconds):
            await anyio.sleep(0.02)
        return True
    return False


@check()
async def a_server_that_one_program_starts_answers_the_next(provider: Provider) -> None:
    for command in (
        '"$0" -c "$1" &',
        'nohup "$0" -c "$1" >/dev/null 2>&1 &',
        '(setsid "$0" -c "$1" </dev/null >/dev/null 2>&1 &)',
    ):
        async with provider.open(SandboxSpec()) as sandbox:
            await _serve(sandbox, command)
            for _ in range(3):
                require(await _fetch(sandbox) == b"served\n", f"{command!r} is gone at the next program")


@check()
async def what_runs_in_the_background_can_be_seen_and_ended_by_later_programs(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        seconds = long_sleep()
        pid = int(await output(sandbox, f"sleep {seconds} >/dev/null 2>&1 & echo $!"))
        found = await shell(
            sandbox, f"until grep -q {seconds} /proc/{pid}/cmdline; do sleep 0.02; done", 10.0
        )
        require(found.ok, "it is not in /proc")
        await output(sandbox, f"kill {pid}")
        require(await _dead(seconds), "it cannot be ended")


@check()
async def what_runs_in_the_background_shares_files_and_sockets_with_later_programs(
    provider: Provider,
) -> None:
    serve = _SERVER.replace(
        'socket.socket(); s.bind(("127.0.0.1", 0))', "socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])"
    )
    serve = serve.replace("str(s.getsockname()[1])", "'there'")
    client = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(9).decode())"
    async with provider.open(SandboxSpec()) as sandbox:
        await output(sandbox, 'echo kept >"$TMPDIR/file"')
        at = sandbox.path("/tmp/s")
        started = await sandbox.exec(
            ["sh", "-c", f'"$0" -c "$1" "$2" &\n{_PORT}', "python3", serve, at], timeout_s=30
        )
        require(started.ok, started)
        require(
            (await sandbox.exec(["python3", "-c", client, at])).stdout == b"served\n", "a Unix socket is gone"
        )
        require(await output(sandbox, 'cat "$TMPDIR/file"') == "kept\n", "a file is gone")


@check()
async def what_runs_in_the_background_does_not_hold_exec_and_may_go_on_writing(provider: Provider) -> None:
    script = "(i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done; echo end >done; sleep 300) & echo over"
    async with provider.open(SandboxSpec()) as sandbox:
        started_at = time.monotonic()
        result = await shell(sandbox, script)
        require(result.ok and b"over\n" in result.stdout, result)
        require(time.monotonic() - started_at < 20, "exec was held")
        waited = await shell(sandbox, "while [ ! -e done ]; do sleep 0.02; done")
        require(waited.ok, "it blocks on its output, or died of it")


@check()
async def ending_one_program_leaves_what_earlier_ones_left_running(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        await _serve(sandbox)
        seconds = long_sleep()
        result = await shell(sandbox, f"(setsid sleep {seconds} &) ; sleep 100", 0.7)
        require(result.timed_out, result)
        require(not sleepers(seconds), "what the program that was ended had started lives on")
        require(await _fetch(sandbox) == b"served\n", "the server of an earlier program is gone")


@check()
async def the_background_does_not_count_for_the_processor_time_of_others(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        await output(sandbox, "(while :; do :; done) >/dev/null 2>&1 & echo started")
        process = await sandbox.start(["sleep", "1.5"])
        result = await process.wait()
        require(result.ok and result.cpu_s < 0.5, f"a sleeping program used {result.cpu_s} s")


@check()
async def the_background_reaches_the_processor_time_limit(provider: Provider) -> None:
    async with provider.open(SandboxSpec(limits=Limits(cpu_s=1.0))) as sandbox:
        seconds = long_sleep()
        script = f"(sleep {seconds} & while :; do :; done) >/dev/null 2>&1 & echo started"
        require((await shell(sandbox, script)).ok, "it did not start")
        with anyio.move_on_after(40):
            while sleepers(seconds):
                await anyio.sleep(0.05)
            require((await sandbox.exec(["true"])).ok, "the sandbox is unusable afterwards")
            return
        require(False, "it is not ended")


@check()
async def the_background_reaches_the_disk_limit(provider: Provider) -> None:
    async with provider.open(SandboxSpec(limits=Limits(disk_mb=4))) as sandbox:
        seconds = long_sleep()
        fill = "for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero >$i; done"
        script = f"({fill}; sleep {seconds}) >/dev/null 2>&1 & sleep 0.01"
        result = await shell(sandbox, script)
        require(result.ok or result.killed_by is KilledBy.DISK, result)
        require(await _dead(seconds), "it is not ended")
        result = await shell(sandbox, "sleep 0.2")
        require(result.killed_by is KilledBy.DISK, f"what it wrote is not counted: {result}")


@check(isolation=True)
async def foreground_and_background_share_the_number_of_processes(provider: Provider) -> None:
    async with provider.open(SandboxSpec(limits=Limits(processes=100))) as sandbox:
        start = "i=0; while [ $i -lt {0} ]; do sleep 300 >/dev/null 2>&1 & i=$((i+1)); done; echo all"
        require(b"all" in (await shell(sandbox, start.format(70))).stdout, "70 of 100 are too many")
        result = await shell(sandbox, start.format(70))
        require(b"all" not in result.stdout, "140 processes run where 100 may")


@check()
async def what_runs_in_the_background_is_gone_before_the_files_are_looked_at(provider: Provider) -> None:
    writer = 'trap "echo last >late; exit 0" TERM; echo up >up; while :; do sleep 0.05; done'
    async with provider.open(SandboxSpec()) as sandbox:
        seconds = long_sleep()
        stubborn = f"(setsid sh -c 'trap \"\" TERM; sleep {seconds}; :' &) >/dev/null 2>&1"
        script = f"(sh -c '{writer}' &) >/dev/null 2>&1; {stubborn}; while [ ! -e up ]; do sleep 0.02; done"
        require((await shell(sandbox, script)).ok, "they did not start")
        found = await sandbox.changed()
        require(not sleepers(seconds), "it runs while the files are looked at")
        require(
            "late" in found.added, f"a program that writes on SIGTERM had no time for it: {[*found.added]}"
        )
        require((await sandbox.exec(["true"])).ok, "the sandbox is unusable afterwards")


@check()
async def closing_ends_what_runs_in_the_background(provider: Provider) -> None:
    seconds = long_sleep()
    async with provider.open(SandboxSpec()) as sandbox:
        await output(sandbox, f"(setsid sleep {seconds} &) >/dev/null 2>&1; sleep {seconds} & echo started")
        require(await _alive(seconds), "it does not run")
    require(not sleepers(seconds), "alive after closing")


@check()
async def many_short_programs_leave_nothing_behind(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        for _ in range(20):
            require((await sandbox.exec(["true"])).ok, "a short program fails")
        count = "n=0; for p in /proc/[0-9]*; do n=$((n+1)); done; echo $n"
        count_before = int(await output(sandbox, count))
        for _ in range(20):
            await output(sandbox, "(true &) >/dev/null 2>&1")
        require(
            int(await output(sandbox, count)) < count_before + 10 or not provider.isolated,
            "processes are left",
        )
