"""The command lines of podman and docker. They differ in few flags, all of them here.

The engine must be of this machine: it binds directories that this process makes. What a program is given as variables never stands on a
command line, which other users can read: it is in a file that the container alone sees.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream

from sandboxes import seccomp
from sandboxes.base import Limits, SandboxError
from sandboxes.container.settings import ContainerSettings

LABEL = "penstock.sandbox"
"""Label of every container; its value is the sandbox's id."""
ROOT = "penstock.root"
"""Label of every container: the directory that holds the sandbox's record."""
CALL_S = 60.0
_OWN_PROCESSES, _ANY_PROCESSES = 2, 32_768
_KEPT = 1 << 20  # bytes of each stream of a subcommand


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of this machine (`source`) seen at `target`."""

    source: Path
    target: str
    writable: bool = False

    @property
    def option(self) -> str:
        for path in (str(self.source), self.target):
            if "," in path or '"' in path:
                raise ValueError(f"container engines cannot bind {path!r}: rename it without comma and quote")
        return f"type=bind,source={self.source},target={self.target}" + ("" if self.writable else ",readonly")


@dataclass(frozen=True, slots=True)
class Run:
    """One program's container. `labels` and `marks` (variables) are public."""

    name: str
    image: str
    user: str
    own_user: bool
    limits: Limits
    mounts: Sequence[Mount]
    labels: Mapping[str, str]
    marks: Mapping[str, str]
    seccomp: Path
    script: str
    argv: Sequence[str]


class Engine:
    """podman or docker, by its command line."""

    def __init__(self, settings: ContainerSettings) -> None:
        self.settings = settings
        self.podman = settings.name == "podman"

    @property
    def command(self) -> list[str]:
        """The engine and its global options."""
        runtime = [f"--runtime={self.settings.runtime}"] if self.podman and self.settings.runtime else []
        return [self.settings.engine, *self.settings.global_options, *runtime]

    def missing(self) -> str:
        """A sentence if the engine is not installed, else empty."""
        if shutil.which(self.settings.engine) is not None:
            return ""
        return f"{self.settings.engine} is not installed: install it, or choose another sandbox.container.engine."

    def run(self, run: Run) -> list[str]:
        """The command that runs a program in the foreground and ends with its exit code; nothing stays of the container."""
        limits, settings = run.limits, self.settings
        most = limits.processes + _OWN_PROCESSES if run.own_user else _ANY_PROCESSES
        memory = f"{limits.memory_mb}m"
        options = [
            *("--rm", "--interactive", "--attach=stdin", "--attach=stdout", "--attach=stderr"),
            *(f"--name={run.name}", "--pull=never", "--log-driver=none", "--sig-proxy=false"),
            *("--network=none", "--ipc=private", "--cgroupns=private", "--hostname=sandbox", "--no-healthcheck"),
            *("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--security-opt=label=disable"),
            *(f"--security-opt=seccomp={run.seccomp}", f"--user={run.user}", "--workdir=/"),
            *(f"--memory={memory}", f"--memory-swap={memory}", f"--shm-size={memory}"),
            *(f"--pids-limit={limits.processes}", "--ulimit=core=0:0", "--ulimit=nofile=4096:4096"),
            # Counted per user of the machine, so over all programs of a sandbox with a user of its own. Unasked, engines take more than we may have.
            f"--ulimit=nproc={most}:{most}",
            f"--ulimit=fsize={limits.disk_mb << 20}:{limits.disk_mb << 20}",
            f"--ulimit=cpu={math.ceil(limits.cpu_s) + 1}:{math.ceil(limits.cpu_s) + 1}",
        ]  # fmt: skip
        options += ["--mount", "type=tmpfs,target=/sys,tmpfs-mode=0555"]  # it tells of the machine's hardware
        if self.podman:
            options += [
                "--read-only-tmpfs=false",
                "--image-volume=ignore",
                "--passwd=false",
                "--systemd=false",
                "--http-proxy=false",
            ]
        elif settings.runtime:
            options.append(f"--runtime={settings.runtime}")
        if settings.cpus:
            options.append(f"--cpus={settings.cpus:g}")
        options += [f"--label={key}={value}" for key, value in run.labels.items()]
        options += [f"--env={key}={value}" for key, value in run.marks.items()]
        for mount in run.mounts:
            options += ["--mount", mount.option]
        options += [*settings.run_options, "--entrypoint=/bin/sh", run.image]
        return [*self.command, "run", *options, "-c", run.script, "sh", *run.argv]

    async def call(
        self, *words: str, timeout_s: float = CALL_S, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a subcommand to its end, whatever its exit code. Of what it prints the last MiB is kept: what builds an image may print without
        end. `SandboxError` where it cannot be run or does not end."""
        try:
            with anyio.fail_after(timeout_s):
                return await _ran([*self.command, *words], stdin)
        except OSError as error:
            raise SandboxError(f"{self.settings.engine} cannot be run: {error}") from error
        except TimeoutError as error:
            raise SandboxError(
                f"{self.settings.engine} {words[0]} has not ended after {timeout_s:g} s"
            ) from error

    async def copied(self, source: str, sink: BinaryIO, most: int, timeout_s: float = CALL_S) -> bool | None:
        """Writes the tar archive of `source` (CONTAINER:PATH) into `sink`, no more than `most` bytes. None: there are more; False: there is
        no such path. `SandboxError` where it does not end or ends too early; OSError of `sink`."""
        command, got = [*self.command, "cp", source, "-"], 0
        try:
            with anyio.fail_after(timeout_s):
                async with await anyio.open_process(
                    command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                ) as process:
                    assert process.stdout is not None
                    async for part in process.stdout:
                        got += len(part)
                        if got > most:
                            process.kill()
                            return None
                        sink.write(part)
                    ended = await process.wait()
        except TimeoutError as error:
            raise SandboxError(f"{self.settings.engine} cp has not ended after {timeout_s:g} s") from error
        if ended and got:
            raise SandboxError(f"{self.settings.engine} cp failed after {got} bytes")
        return ended == 0

    async def must(self, *words: str, timeout_s: float = CALL_S) -> bytes:
        """The stdout of a subcommand, all of it. `SandboxError` with what it said unless it succeeds, and where it prints a MiB or more."""
        done = await self.call(*words, timeout_s=timeout_s)
        if done.returncode:
            raise SandboxError(f"{self.settings.engine} {words[0]} failed: {said(done.stderr)}")
        if len(done.stdout) >= _KEPT:
            raise SandboxError(f"{self.settings.engine} {words[0]} printed more than {_KEPT >> 20} MiB")
        return done.stdout

    async def remove(self, *names: str) -> None:
        """End containers and remove them; those that are gone already are not missed."""
        await self.call("rm", "--force", *names)

    async def left(self, root: Path) -> dict[str, str]:
        """Containers of sandboxes below `root`: container → sandbox."""
        label = f'index .Labels "{LABEL}"' if self.podman else f'.Label "{LABEL}"'
        shown = f"{{{{.ID}}}} {{{{{label}}}}}"
        listed = await self.must(
            "ps", "--all", "--no-trunc", f"--filter=label={ROOT}={root}", f"--format={shown}"
        )
        pairs = (line.split() for line in listed.decode().splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


async def _ran(command: Sequence[str], stdin: bytes | None) -> subprocess.CompletedProcess[bytes]:
    """Like `anyio.run_process`, with no more in memory than the end of each stream."""
    kept = {"stdout": bytearray(), "stderr": bytearray()}

    async def read(name: str, stream: ByteReceiveStream) -> None:
        async for part in stream:
            kept[name] += part
            del kept[name][:-_KEPT]

    async with await anyio.open_process(
        command, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        async with anyio.create_task_group() as reading:
            reading.start_soon(read, "stdout", process.stdout)
            reading.start_soon(read, "stderr", process.stderr)
            if process.stdin is not None and stdin is not None:
                with suppress(anyio.BrokenResourceError):  # it has ended without reading all of it
                    await process.stdin.send(stdin)
                await process.stdin.aclose()
        status = await process.wait()
    return subprocess.CompletedProcess(list(command), status, bytes(kept["stdout"]), bytes(kept["stderr"]))


def said(stderr: bytes) -> str:
    """The end of what an engine complained of, in one line."""
    return " ".join(stderr.decode(errors="replace").split())[-500:] or "silently"


def profile() -> dict[str, Any] | None:
    """The filter of seccomp.py in the form of container engines; None on an architecture that is not known here."""
    known = seccomp.numbers()
    if not known:
        return None
    refused = [
        {"names": [name for name in table if name in known], "action": "SCMP_ACT_ERRNO", "errnoRet": number}
        for table, number in ((seccomp.DENIED, 1), (seccomp.ABSENT, 38))
    ]
    spaces = [1 << bit for bit in range(32) if seccomp.NEW_NAMESPACES >> bit & 1]
    low = 0xFFFF_FFFF
    checked = [
        *(("clone", 0, "SCMP_CMP_MASKED_EQ", bit, bit) for bit in spaces),
        *(("socket", 0, "SCMP_CMP_MASKED_EQ", low, each) for each in range(max(seccomp.FAMILIES)) if each not in seccomp.FAMILIES),
        ("socket", 0, "SCMP_CMP_GT", max(seccomp.FAMILIES), 0),
        *(("ioctl", 1, "SCMP_CMP_MASKED_EQ", low, request) for request in seccomp.TERMINAL),
    ]  # fmt: skip
    arguments = [
        {
            "names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
            "args": [{"index": index, "op": op, "value": value, "valueTwo": second}],
        }
        for name, index, op, value, second in checked
    ]  # fmt: skip
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [*refused, *arguments]}


def write_profile(path: Path) -> None:
    """The filter as a file for `--security-opt=seccomp=`; `SandboxError` where there is none."""
    found = profile()
    if found is None:
        raise SandboxError("no filter of system calls is known for this machine's architecture")
    path.write_text(json.dumps(found))
