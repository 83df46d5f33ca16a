"""The escape suite: every attempt of `attempts.py`, and bombs, from inside a sandbox. It runs only with isolation.

    for each attempt: set up targets on this machine → run the program inside → it must report a refusal

`outside(attempt)` runs the same program without a sandbox: it must get out there, or the attempt proves nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from sandboxes import seccomp
from sandboxes.base import KilledBy, Limits, PathRefused, Provider, SandboxSpec
from sandboxes.conformance.attempts import ATTEMPTS, Attempt
from sandboxes.conformance.registry import (
    CHECKS,
    ConformanceCheck,
    check,
    confined,
    long_sleep,
    require,
    shell,
    sleepers,
)

_LIMITS = Limits(memory_mb=128, processes=64, disk_mb=64, wall_s=60.0)
_IPC_CREAT, _IPC_RMID = 0o1000, 0


@contextmanager
def host() -> Iterator[dict[str, Any]]:
    """The targets of attempts: servers, files, a process, a segment of shared memory; removed at the end. The process must survive."""
    name = f"penstock-{secrets.token_hex(8)}"
    shm_key = secrets.randbelow(1 << 30) + 1
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-host-")))
        directory.chmod(0o777)
        (directory / "secret").write_text("secret")
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        unix, abstract = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        unix.bind(str(directory / ".s.PGSQL.5432"))
        (directory / ".s.PGSQL.5432").chmod(0o777)
        abstract.bind(f"\0{name}")
        unix.listen()
        abstract.listen()
        stack.enter_context(_answering(udp, tcp, unix, abstract))
        segment = libc.shmget(shm_key, 4096, _IPC_CREAT | 0o666)
        stack.callback(libc.shmctl, segment, _IPC_RMID, None)
        victim = subprocess.Popen(["sleep", long_sleep()], env={"SECRET": name})
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        yield {
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "unix": str(directory / ".s.PGSQL.5432"),
            "abstract": name,
            "file": str(directory / "secret"),
            "directory": str(directory),
            "home": str(Path.home()),
            "own": "/tmp",
            "pid": victim.pid,
            "shm": shm_key,
            "numbers": seccomp.numbers(),
        }
        confined(victim.poll() is None, "a process of the host was killed from inside")


@contextmanager
def _answering(udp: socket.socket, *listeners: socket.socket) -> Iterator[None]:
    """Threads that send the secret to every client, until the sockets are shut down."""

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(b"secret")

    def reply() -> None:
        while True:
            data, peer = udp.recvfrom(99)
            if data == b"end":
                return
            udp.sendto(b"secret", peer)

    threads = [
        threading.Thread(target=reply),
        *(threading.Thread(target=serve, args=(each,)) for each in listeners),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", udp.getsockname())
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def outside(attempt: Attempt) -> str:
    """The program's report without confinement: `out`, or why this machine itself refuses."""
    with host() as target, tempfile.TemporaryDirectory() as directory:
        argv = [sys.executable, "-c", attempt.program, json.dumps({**target, "own": directory, "places": []})]
        result = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, cwd=directory, stdin=subprocess.DEVNULL
        )
        require(result.returncode == 0, f"{attempt.name}: {result.stderr[-500:]}")
        return result.stdout.strip()


async def _refused(attempt: Attempt, provider: Provider) -> None:
    with host() as target:
        async with provider.open(SandboxSpec(limits=_LIMITS)) as sandbox:
            # Directories of an image that programs may write: the sandbox's own, as its work directory is.
            own = {"places": list(getattr(sandbox, "places", ()))}
            result = await sandbox.exec(["python3", "-c", attempt.program, json.dumps(target | own)])
            output = result.stdout.decode().strip()
            confined(output != "out", f"it got out, and ended with {result}")
            require(output.startswith("refused "), f"it printed {output!r} and ended with {result}")
            reason = output.removeprefix("refused ")
            require(not attempt.refusals or reason in attempt.refusals, f"refused with {reason} only")
            require((await sandbox.exec(["true"])).ok, "the sandbox is unusable afterwards")


CHECKS.extend(
    ConformanceCheck(
        name=f"no way out: {each.name}", body=partial(_refused, each), isolation=True, escape=True
    )
    for each in ATTEMPTS
)


@check(isolation=True, escape=True)
async def a_fork_bomb_stays_in_its_sandbox(provider: Provider) -> None:
    seconds = long_sleep()
    bomb = f"bomb() {{ sleep {seconds} & bomb | bomb & }}; bomb; sleep {seconds}"
    async with provider.open(SandboxSpec(limits=_LIMITS)) as sandbox:
        process = await sandbox.start(["bash", "-c", bomb], timeout_s=2.0)
        with anyio.fail_after(20):
            result = await process.wait()
        require(not result.ok, result)
        require(not sleepers(seconds), "parts of the bomb are alive")
        require((await sandbox.exec(["true"])).ok, "the sandbox is unusable afterwards")
    with anyio.fail_after(20):
        await anyio.run_process(["true"])  # this machine works as well


@check(isolation=True, escape=True)
async def many_small_processes_do_not_take_more_memory_than_one(provider: Provider) -> None:
    program = "python3 -c 'import time; held = bytearray(40_000_000); time.sleep(60)'"
    async with provider.open(SandboxSpec(limits=_LIMITS)) as sandbox:
        result = await shell(sandbox, f"for i in 1 2 3 4 5 6; do {program} & done; wait; exit 1", 20.0)
        require(result.killed_by is KilledBy.MEMORY, result)


@check(isolation=True, escape=True)
async def files_in_memory_count_as_memory(provider: Provider) -> None:
    async with provider.open(SandboxSpec(limits=_LIMITS)) as sandbox:
        result = await shell(sandbox, "head -c 500000000 /dev/zero >/dev/shm/fill", 20.0)
        require(not result.ok, "more than the limit went into /dev/shm")


@check(isolation=True, escape=True)
async def a_link_swapped_in_while_files_are_taken_out_leads_nowhere(provider: Provider) -> None:
    swap = (
        "import os\nos.mkdir('real')\nopen('real/secret', 'w').write('mine')\n"
        "os.symlink(os.environ['HOST'], 'link')\nos.rename('real', 'now')\nprint('ready', flush=True)\n"
        "while True:\n    os.rename('now', 'real')\n    os.rename('link', 'now')\n"
        "    os.rename('now', 'link')\n    os.rename('real', 'now')\n"
    )
    with host() as target:
        async with provider.open(SandboxSpec(env={"HOST": target["directory"]})) as sandbox:
            process = await sandbox.start(["python3", "-c", swap])
            require((await process.read())[0] == b"ready\n", "the program did not start")
            contents: set[str] = set()
            for _ in range(300):
                try:
                    contents.add((await sandbox.get("/app/now/secret")).decode())
                except (PathRefused, FileNotFoundError) as error:
                    contents.add(type(error).__name__)
            artifacts = await sandbox.changed()
            contents |= {file.data.decode() for file in artifacts.added.values()}
            await process.kill()
            confined("secret" not in contents, "a file of the host came out through a link")
            require("mine" in contents, f"the file was never read: {contents}")


@check(isolation=True, escape=True)
async def one_sandbox_sees_nothing_of_another(provider: Provider) -> None:
    secret = secrets.token_hex(8)
    search = f"cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; ls -R /tmp /app /logs /home; grep -r {secret[:8]} /tmp /app /home /logs"
    async with (
        provider.open(SandboxSpec(env={"TOKEN": secret})) as first,
        provider.open(SandboxSpec()) as second,
    ):
        process = await first.start(["sh", "-c", f"echo {secret} >/tmp/token; echo ready; sleep 60"])
        require(await process.read() == (b"ready\n", b""), "the program did not start")
        found = await shell(second, search)
        confined(secret.encode() not in found.stdout, "the token of another sandbox is visible")
        require(os.fsencode(secret) in (await first.get("/tmp/token")), "the check cannot see the token")
        await process.kill()
