"""The command lines of podman and docker. They differ in few flags; all of those are here.

The engine must run on this machine: it binds directories that this process creates. A program's variables never appear on a
command line, which other users can read. They are in a file that only the container sees.
"""

from __future__ import annotations

import errno
import json
import math
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream

from sandboxes import seccomp
from sandboxes.base import Limits, MachineFault, SandboxError, SideService
from sandboxes.container.settings import ContainerSettings
from sandboxes.inside import confine
from sandboxes.machine import fault

LABEL = "penstock.sandbox"
"""Label of every container; its value is the sandbox's id."""
ROOT = "penstock.root"
"""Label of every container: the directory that holds the sandbox's record."""
CALL_S = 60.0
_OWN_PROCESSES, ENTERING, ANY_PROCESSES = 2, 24, 32_768
"""Process 1 and a program's shell; an engine's short-lived processes while it starts a program inside; more than any user of a machine has."""
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""Of a side service whose image begins as root: what a server needs to prepare its files and become an ordinary user."""
_PROXIES = tuple(
    name
    for scheme in ("http", "https", "ftp", "no", "all")
    for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")
)
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
            if any(letter in ',"\r\n' for letter in path):
                raise ValueError(
                    f"container engines cannot bind {path!r}: rename it without comma, quote and line break"
                )
        return f"type=bind,source={self.source},target={self.target}" + ("" if self.writable else ",readonly")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """A sandbox's container. `labels` and `marks` (variables) are public. `shares`: the container whose network it has; None: none of its own."""

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
    shares: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRun:
    """The container of a side service. It has network and process numbers of the container `shares`, and ends with that. `env` is the task's own
    text, and public. `hosts`: its /etc/hosts."""

    name: str
    image: str
    shares: str
    service: SideService
    limits: Limits
    hosts: Mount
    labels: Mapping[str, str]
    marks: Mapping[str, str]
    seccomp: Path


class ContainerEngine:
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

    def run(self, run: ContainerRun) -> list[str]:
        """The subcommand that starts a container and returns; the engine removes the container when its process 1 has ended."""
        limits, settings = run.limits, self.settings
        max_processes = limits.processes + _OWN_PROCESSES if run.own_user else ANY_PROCESSES
        # If the user has its own limit, programs that use it up do not prevent the engine from starting the next one.
        pids_limit = max_processes + ENTERING if run.own_user else limits.processes
        memory = f"{limits.memory_mb}m"
        options = [
            *("--rm", "--detach", f"--name={run.name}", "--pull=never", "--log-driver=none"),
            *(*self._network(run.shares), "--ipc=private", "--cgroupns=private", "--no-healthcheck"),
            *(
                "--read-only",
                "--cap-drop=all",
                "--security-opt=no-new-privileges",
                "--security-opt=label=disable",
            ),
            *(f"--security-opt=seccomp={run.seccomp}", f"--user={run.user}", "--workdir=/"),
            *(f"--memory={memory}", f"--memory-swap={memory}", f"--shm-size={memory}"),
            *(f"--pids-limit={pids_limit}", *_fixed_limits()),
            # Counted per user of the machine, so over all programs of a sandbox with its own user. The engines' default is more than we may have.
            f"--ulimit=nproc={max_processes}:{max_processes}",
            f"--ulimit=fsize={limits.disk_mb << 20}:{limits.disk_mb << 20}",
            f"--ulimit=cpu={math.ceil(limits.cpu_s) + 1}:{math.ceil(limits.cpu_s) + 1}",
        ]
        # The real /sys describes the machine's hardware.
        options += ["--mount", "type=tmpfs,target=/sys,tmpfs-mode=0555"]
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
        options += [*self._cores(limits), *_named(run.labels, {**self._without_proxies(), **run.marks})]
        for mount in run.mounts:
            options += ["--mount", mount.option]
        options += [*settings.run_options, "--entrypoint=/bin/sh", run.image]
        return ["run", *options, "-c", run.script, "sh", *run.argv]

    def serve(self, run: ServiceRun) -> list[str]:
        """The subcommand that runs a side service in the foreground, until it ends. Its user is the image's, with fewer capabilities than the
        engine gives: enough for a server that gives up root at its start."""
        limits, service = run.limits, run.service
        memory = f"{limits.memory_mb}m"
        options = [
            *("--rm", f"--name={run.name}", "--pull=never", "--log-driver=none", "--sig-proxy=false"),
            *(f"--network=container:{run.shares}", f"--pid=container:{run.shares}"),
            *("--ipc=private", "--cgroupns=private", "--no-healthcheck"),
            *("--cap-drop=all", *(f"--cap-add={each}" for each in _CAPABILITIES)),
            *("--security-opt=no-new-privileges", "--security-opt=label=disable"),
            f"--security-opt=seccomp={run.seccomp}",
            *(f"--memory={memory}", f"--memory-swap={memory}", f"--shm-size={memory}"),
            *(f"--pids-limit={limits.processes + ENTERING}", *_fixed_limits()),
            f"--ulimit=nproc={ANY_PROCESSES}:{ANY_PROCESSES}",
            f"--ulimit=fsize={limits.disk_mb << 20}:{limits.disk_mb << 20}",
            *("--mount", "type=tmpfs,target=/sys,tmpfs-mode=0555", "--mount", run.hosts.option),
        ]
        if self.podman:
            options += ["--systemd=false", "--http-proxy=false"]
        elif self.settings.runtime:
            options.append(f"--runtime={self.settings.runtime}")
        env = {**self._without_proxies(), **service.env, **run.marks}
        options += [*self._cores(limits), *_named(run.labels, env)]
        options += [f"--volume={path}" for path in service.volumes]
        if service.user is not None:
            options.append(f"--user={service.user}")
        if service.work_dir is not None:
            options.append(f"--workdir={service.work_dir}")
        first, *arguments = service.entrypoint or ("",)
        if service.entrypoint is not None:
            options.append(f"--entrypoint={first}")
        return ["run", *options, *self.settings.run_options, run.image, *arguments, *(service.command or ())]

    def _network(self, shares: str | None) -> tuple[str, ...]:
        """A container without a network has a loopback of its own. Where it has that of another one, docker takes no name for it."""
        if shares is None:
            return "--network=none", "--hostname=sandbox"
        return f"--network=container:{shares}", *(("--hostname=sandbox",) if self.podman else ())

    def _without_proxies(self) -> Mapping[str, str]:
        """docker gives every container the `proxies` of its user's config.json, unless a variable of this name is set."""
        return {} if self.podman else dict.fromkeys(_PROXIES, "")

    def _cores(self, limits: Limits) -> list[str]:
        cpus = min(filter(None, (self.settings.cpus, limits.cpus)), default=0.0)
        return [f"--cpus={cpus:g}"] if cpus else []

    def exec(self, container: str, user: str, script: str, argv: Sequence[str]) -> list[str]:
        """The subcommand that runs a shell script in a container, in the foreground, and ends with its exit code."""
        options = [f"--user={user}", "--workdir=/", container]
        return ["exec", *options, "/bin/sh", "-c", script, "sh", *argv]

    async def call(
        self,
        *words: str,
        timeout_s: float = CALL_S,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "/",
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a subcommand to its end, with `env` or our own variables; any exit code is returned. Only the last MiB of its output is kept, since
        an image build may print without limit. `cwd`: podman's monitor of a container stays there, and creates a file `oom` when memory runs
        out. `SandboxError` if it cannot be run or does not end."""
        try:
            with anyio.fail_after(timeout_s):
                return await _ran([*self.command, *words], stdin, env, cwd)
        except OSError as error:
            raise fault(error, f"{self.settings.engine} cannot be run: {error}") from error
        except TimeoutError as error:
            raise SandboxError(
                f"{self.settings.engine} {words[0]} has not ended after {timeout_s:g} s"
            ) from error

    async def has_image(self, name: str) -> bool:
        """Whether the engine has an image. `MachineFault` if the engine does not answer, which gives the same exit code as a missing image."""
        if not (await self.call("image", "inspect", name)).returncode:
            return True
        await self.require_answer()
        return False

    async def require_answer(self) -> None:
        """Raise `MachineFault` unless the engine answers: podman by itself, docker by its daemon."""
        result = await self.call("version")
        if result.returncode:
            raise MachineFault(f"{self.settings.engine} does not answer: {error_text(result.stderr)}")

    async def copied(self, source: str, sink: BinaryIO, most: int, timeout_s: float = CALL_S) -> bool | None:
        """Write the tar archive of `source` (CONTAINER:PATH) into `sink`, at most `most` bytes. None: the archive is longer. False: the path does
        not exist. `SandboxError` if it does not end or ends too early; OSError from `sink`."""
        command, received = [*self.command, "cp", source, "-"], 0
        try:
            with anyio.fail_after(timeout_s):
                async with await anyio.open_process(
                    command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                ) as process:
                    assert process.stdout is not None
                    async for part in process.stdout:
                        received += len(part)
                        if received > most:
                            process.kill()
                            return None
                        sink.write(part)
                    exit_code = await process.wait()
        except TimeoutError as error:
            raise SandboxError(f"{self.settings.engine} cp has not ended after {timeout_s:g} s") from error
        if exit_code and received:
            raise SandboxError(f"{self.settings.engine} cp failed after {received} bytes")
        return exit_code == 0

    async def must(self, *words: str, timeout_s: float = CALL_S) -> bytes:
        """The whole stdout of a subcommand. `SandboxError` with its complaint unless it succeeds, and if it prints a MiB or more."""
        result = await self.call(*words, timeout_s=timeout_s)
        if result.returncode:
            raise SandboxError(f"{self.settings.engine} {words[0]} failed: {error_text(result.stderr)}")
        if len(result.stdout) >= _KEPT:
            raise SandboxError(f"{self.settings.engine} {words[0]} printed more than {_KEPT >> 20} MiB")
        return result.stdout

    async def remove(self, *names: str) -> None:
        """End and remove containers, with their own volumes. Missing ones are ignored."""
        # Without it, podman removes none of them if one is missing.
        missing = ["--ignore"] if self.podman else []
        await self.call("rm", "--force", "--volumes", *missing, *names)

    async def left(self, root: Path) -> dict[str, str]:
        """Containers of sandboxes below `root`: container → sandbox."""
        label = f'index .Labels "{LABEL}"' if self.podman else f'.Label "{LABEL}"'
        format_string = f"{{{{.ID}}}} {{{{{label}}}}}"
        listed = await self.must(
            "ps", "--all", "--no-trunc", f"--filter=label={ROOT}={root}", f"--format={format_string}"
        )
        pairs = (line.split() for line in listed.decode().splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _fixed_limits() -> Iterator[str]:
    """Options for the resource limits of every program; engines would pass ours on. They name no address space."""
    free = confine.may_raise()
    for name, pair in confine.FIXED_LIMITS.items():
        if name is not confine.Resource.AS:
            soft, hard = pair if free else confine.allowed(pair, resource.getrlimit(name)[1])
            yield f"--ulimit={name.name.lower()}={soft}:{hard}"


def _named(labels: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    return [
        *(f"--label={key}={value}" for key, value in labels.items()),
        *(f"--env={key}={value}" for key, value in env.items()),
    ]


async def _ran(
    command: Sequence[str], stdin: bytes | None, env: Mapping[str, str] | None, cwd: str | Path
) -> subprocess.CompletedProcess[bytes]:
    """Like `anyio.run_process`, but only the end of each stream is kept in memory."""
    output = {"stdout": bytearray(), "stderr": bytearray()}

    async def read(name: str, stream: ByteReceiveStream) -> None:
        async for part in stream:
            output[name] += part
            del output[name][:-_KEPT]

    async with await anyio.open_process(
        command, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, env=env, cwd=cwd
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "stdout", process.stdout)
            tasks.start_soon(read, "stderr", process.stderr)
            if process.stdin is not None and stdin is not None:
                with suppress(anyio.BrokenResourceError):  # it has ended without reading all of it
                    await process.stdin.send(stdin)
                await process.stdin.aclose()
        status = await process.wait()
    return subprocess.CompletedProcess(
        list(command), status, bytes(output["stdout"]), bytes(output["stderr"])
    )


def error_text(stderr: bytes) -> str:
    """The end of an engine's error output, in one line."""
    return " ".join(stderr.decode(errors="replace").split())[-500:] or "silently"


def profile() -> dict[str, Any] | None:
    """The filter of seccomp.py in the format of container engines; None on an unknown architecture."""
    known = seccomp.numbers()
    if not known:
        return None
    refused = [
        {"names": [name for name in table if name in known], "action": "SCMP_ACT_ERRNO", "errnoRet": number}
        for table, number in ((seccomp.DENIED, 1), (seccomp.ABSENT, 38))
    ]
    namespace_bits = [1 << bit for bit in range(32) if seccomp.NEW_NAMESPACES >> bit & 1]
    low = 0xFFFF_FFFF
    thread = seccomp.THREAD | seccomp.SHARED_FILES
    masked = "SCMP_CMP_MASKED_EQ"
    checked = [
        *(("clone", errno.EPERM, 0, masked, bit, bit) for bit in namespace_bits),
        ("clone", errno.EPERM, 0, masked, thread, seccomp.THREAD),
        ("close_range", errno.ENOSYS, 2, masked, seccomp.OWN_FILES, seccomp.OWN_FILES),
        *(
            ("socket", errno.EPERM, 0, masked, low, each)
            for each in range(max(seccomp.FAMILIES))
            if each not in seccomp.FAMILIES
        ),
        ("socket", errno.EPERM, 0, "SCMP_CMP_GT", max(seccomp.FAMILIES), 0),
        *(("ioctl", errno.EPERM, 1, masked, low, request) for request in seccomp.TERMINAL),
        *(("ioctl", errno.EOPNOTSUPP, 1, masked, low, request) for request in seccomp.PREALLOCATING),
        ("fallocate", errno.EOPNOTSUPP, 1, masked, seccomp.FREEING, 0),
    ]
    arguments = [
        {
            "names": [name],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": number,
            "args": [{"index": index, "op": op, "value": value, "valueTwo": second_value}],
        }
        for name, number, index, op, value, second_value in checked
    ]
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [*refused, *arguments]}


def write_profile(path: Path) -> None:
    """Write the filter to a file for `--security-opt=seccomp=`. `SandboxError` if the architecture has none."""
    found = profile()
    if found is None:
        raise SandboxError("no filter of system calls is known for this machine's architecture")
    path.write_text(json.dumps(found))
