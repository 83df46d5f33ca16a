"""Checks of running programs: exit codes, input, output, environment, directories, concurrency."""

from __future__ import annotations

import time

import anyio

from sandboxes.base import GATEWAY_SOCKET, HOME, File, KilledBy, Provider, SandboxSpec
from sandboxes.conformance.registry import check, fail, output, require, shell


@check()
async def exit_codes_follow_the_shell(provider: Provider) -> None:
    async with provider.open(SandboxSpec(files={"/app/plain": File(b"#!/bin/sh\n", 0o644)})) as sandbox:
        for argv, code in (
            (["true"], 0),
            (["sh", "-c", "exit 3"], 3),
            (["sh", "-c", "kill -TERM $$"], 143),
            (["no-such-program"], 127),
            (["./plain"], 126),
        ):
            result = await sandbox.exec(argv)
            require(result.exit_code == code and result.killed_by is KilledBy.NONE, f"{argv} gave {result}")


@check()
async def only_a_signal_is_reported_as_one(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        for script, code, signal in (("exit 143", 143, 0), ("exit 255", 255, 0), ("kill -KILL $$", 137, 9)):
            result = await shell(sandbox, script)
            require((result.exit_code, result.signal) == (code, signal), f"{script!r} gave {result}")


@check()
async def arguments_that_no_kernel_takes_are_a_result_not_an_error(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        for argument in ("a\0b", "x" * 300_000, "\ud800"):
            result = await sandbox.exec(["echo", argument])
            require(result.exit_code == 126 and result.stderr, f"{argument[:9]!r} gave {result.exit_code}")


@check()
async def programs_have_shared_memory_and_semaphores(provider: Provider) -> None:
    script = (
        "import os, multiprocessing\nmultiprocessing.Lock()\nprint(oct(os.stat('/dev/shm').st_mode & 0o777))"
    )
    async with provider.open(SandboxSpec()) as sandbox:
        result = await sandbox.exec(["python3", "-c", script])
        require(result.ok and result.stdout == b"0o777\n", f"/dev/shm: {result}")


@check()
async def input_reaches_the_program_and_output_comes_back_in_two_streams(provider: Provider) -> None:
    data = bytes(range(256)) * 2000
    async with provider.open(SandboxSpec()) as sandbox:
        result = await sandbox.exec(["sh", "-c", "cat; echo problem >&2"], stdin=data)
        require(result.stdout == data and result.stderr == b"problem\n", result.stderr)
        require((await sandbox.exec(["cat"])).stdout == b"", "a program without input does not see its end")
        require((await sandbox.exec(["true"], stdin=data)).ok, "unread input is an error")


@check()
async def the_environment_is_the_default_plus_the_spec_plus_the_call(provider: Provider) -> None:
    async with provider.open(SandboxSpec(env={"A": "spec", "B": "spec"})) as sandbox:
        found = await sandbox.exec(["sh", "-c", 'echo "$A $B $C $HOME"'], env={"B": "call", "C": "x y\n$Z"})
        expected = f"spec call x y\n$Z {sandbox.path(HOME)}\n"
        require(found.stdout.decode() == expected, found)


@check()
async def programs_run_in_the_work_directory_or_the_requested_one(provider: Provider) -> None:
    async with provider.open(SandboxSpec(files={"/app/deep/er/file": File(b"")})) as sandbox:
        require((await output(sandbox, "pwd -P")).strip() == sandbox.path("/app"), "not in /app")
        result = await sandbox.exec(["pwd"], cwd="/app/deep/er")
        require(result.stdout.decode().strip() == sandbox.path("/app/deep/er"), result)
        require(not (await sandbox.exec(["true"], cwd="/app/absent")).ok, "an absent directory is accepted")


@check()
async def the_spec_makes_directories_and_says_where_programs_begin(provider: Provider) -> None:
    spec = SandboxSpec(directories=("/app/made/here", "/tmp/too"), cwd="/app/made/here")
    async with provider.open(spec) as sandbox:
        require(
            (await output(sandbox, "pwd -P")).strip() == sandbox.path("/app/made/here"), "begins elsewhere"
        )
        result = await sandbox.exec(["sh", "-c", 'echo x > mine && cd "$1"', "sh", sandbox.path("/tmp/too")])
        require(result.ok, result)
        require(
            [*(await sandbox.changed()).added] == ["made/here/mine"], "directories are not part of the diff"
        )


@check()
async def what_cannot_build_images_refuses_to(provider: Provider) -> None:
    if provider.containers:
        return
    refused = False
    try:
        async with provider.open(SandboxSpec(build={"Dockerfile": File(b"FROM scratch")})):
            pass
    except ValueError:
        refused = True
    require(refused, "a build context is ignored")


@check()
async def a_started_program_can_be_followed_and_ended(provider: Provider) -> None:
    script = "echo one; echo two >&2; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; sleep 200"
    async with provider.open(SandboxSpec()) as sandbox:
        started_at = time.monotonic()
        process = await sandbox.start(["sh", "-c", script])
        out = err = b""
        with anyio.fail_after(30):
            while b"done" not in out:
                more_out, more_err = await process.read()
                require(more_out or more_err, "the output ended early")
                out, err = out + more_out, err + more_err
        require((out, err) == (b"one\ndone\n", b"two\n"), (out, err))
        require(started_at < process.last_output <= time.monotonic(), "last_output is not a time in between")
        require(process.cpu_s() > 0.01, f"cpu_s is {process.cpu_s()}")
        result = await process.kill()
        require((result.killed_by, result.exit_code) == (KilledBy.CALLER, 137), result)
        require(await process.read() == (b"", b""), "output after the end")
        require(await process.wait() == result, "wait does not repeat itself")


@check()
async def programs_of_one_sandbox_run_side_by_side(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        reader = await sandbox.start(["sh", "-c", "while [ ! -e flag ]; do sleep 0.02; done; echo seen"])
        require((await shell(sandbox, "touch flag")).ok, "cannot run next to another program")
        require((await reader.wait()).stdout == b"seen\n", "the first program did not see the file")


@check()
async def twenty_sandboxes_at_once_do_not_mix(provider: Provider) -> None:
    async def check_sandbox(number: int) -> None:
        spec = SandboxSpec(files={"/app/number": File(str(number).encode())})
        async with provider.open(spec) as sandbox:
            for _ in range(3):
                script = 'cat number; touch "$TMPDIR/$(cat number)"; sleep 0.05; ls "$TMPDIR"'
                found = await output(sandbox, script)
                require(found == f"{number}{number}\n", found)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(1000, 1020):
                group.start_soon(check_sandbox, number)


@check()
async def a_callers_error_passes_through_unchanged(provider: Provider) -> None:
    try:
        async with provider.open(SandboxSpec()):
            raise LookupError("mine")
    except LookupError:
        return
    fail("the error did not come out")


@check()
async def the_sockets_place_inside_is_fixed(provider: Provider) -> None:
    async with provider.open(SandboxSpec()) as sandbox:
        result = await sandbox.exec(["test", "-e", GATEWAY_SOCKET])
        require(result.exit_code == 1, "there is a gateway although none was requested")
