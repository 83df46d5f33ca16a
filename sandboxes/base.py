"""The sandbox port: what a provider offers, and the values that cross it.

A *sandbox* is a private file tree plus a way to run programs against it. Its parts, as the programs see them:

=====================  ============================================================================
`/app`                 the work directory (the current directory of every program); `changed()` diffs it
`/tmp /logs /home/agent`  writable, empty at the start, not part of the diff; `/home/agent` is `$HOME`
`/tests /solution`     read-only for programs; exist once the caller has placed something there
`/run/penstock/gateway.sock`  the gateway, if the spec names a socket: the only way out
`binds`                read-only, wherever the spec puts them
=====================  ============================================================================

Who is at fault is never mixed: what a *program* does wrong is data (`ExecResult`, `PathRefused`), what the
*platform* does wrong is `SandboxError`, what the *caller* does wrong is `ValueError`.

Processes do not outlive the `exec` or `start` that began them: when its result is there, every descendant,
double-forked daemons included, is dead. Only files carry over from one program to the next. Each program
has namespaces of its own, so two programs of one sandbox do not share processes or ports.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

WORK = "/app"
HOME = "/home/agent"
WRITABLE = (WORK, "/tmp", "/logs", HOME)
"""Directories that programs may write; all other places are read-only or absent."""
PLACED = ("/tests", "/solution")
"""Directories that only the caller may write, through `files` or `put`."""
GATEWAY_SOCKET = "/run/penstock/gateway.sock"
DEFAULT_ENV: Mapping[str, str] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
}
"""What every program's environment begins with."""


class SandboxError(RuntimeError):
    """Signals that the platform failed (no namespaces, no disk, a process that will not die).

    Never the program's fault, hence never a reward; but for `SandboxSpent`.
    """


class SandboxFull(SandboxError):
    """Signals that the disk under the sandboxes takes nothing more (full, over its quota, read-only): none was opened, nothing is left of it.

    Raised by `open` and `problems` alone. Says nothing of the work: wait until there is room, then open it again.
    """


class SandboxSpent(SandboxError):
    """Signals that a sandbox is gone as a whole because its programs used up a limit, as where a cluster ends their pod: the programs' doing. Those
    that ran say the same by `ExecResult.killed_by`; what they left cannot be read any more."""


class ImageRefused(ValueError):
    """Signals that a task's image cannot be built, or holds what no sandbox takes. The task's doing; one sentence says what."""


class PathRefused(Exception):
    """Signals that a path inside is not a plain file that may cross the boundary. The program's doing."""

    def __init__(self, path: str, reason: RefusedReason) -> None:
        super().__init__(f"{path}: {reason.value}")
        self.path = path
        self.reason = reason


class RefusedReason(enum.Enum):
    """Why a file stayed inside."""

    LINK = "is a symbolic link, or is reached through one"
    SPECIAL = "is not a regular file"
    TOO_LARGE = "is larger than the limit for one file"
    SPARSE = "is far larger than the disk space it occupies"
    TOO_MANY = "comes after the largest number of files"
    TOTAL = "comes after the largest total size"
    NAME = "has a name that is not UTF-8"
    DEPTH = "lies too deep"
    UNREADABLE = "cannot be read"


class KilledBy(enum.Enum):
    """What ended a program; `NONE` when it ended by itself."""

    NONE = "none"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CPU = "cpu"
    DISK = "disk"
    OUTPUT = "output"
    CALLER = "caller"


@dataclass(frozen=True, slots=True)
class File:
    """A regular file's bytes and permission bits."""

    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use. Reaching one ends the program and is named in `ExecResult.killed_by`.

    `memory_mb` and `processes` hold for all programs of a sandbox together (at the process limit, `fork`
    fails inside and nothing is killed); `cpu_s` and `wall_s` for one program with its descendants; `disk_mb`
    and `disk_files` for everything writable. `output_bytes` is what is kept of each of stdout and stderr: the
    rest is read and dropped, and 16 times as much ends the program.
    """

    memory_mb: int = 512
    processes: int = 128
    cpu_s: float = 120.0
    disk_mb: int = 256
    disk_files: int = 50_000
    wall_s: float = 120.0
    output_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class ArtifactLimits:
    """What may cross from the work directory.

    `ratio` bounds a file's size over the disk space it occupies (a sparse file is the archive bomb of a diff).
    Directories called as in `skip` are not looked into, at any depth.
    """

    files: int = 2_000
    file_bytes: int = 8 << 20
    total_bytes: int = 32 << 20
    ratio: float = 100.0
    depth: int = 32
    skip: frozenset[str] = frozenset({"__pycache__"})


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to open.

    `files`: absolute path inside (below a `WRITABLE` or `PLACED` directory) → file, there before any program
    runs. `binds`: host path → absolute path inside, read-only, visible to the sandbox's unprivileged user.
    `gateway_socket`: host path of a Unix socket with mode 0666, alone in its directory: the directory is what
    is bound, so that a gateway that starts again is reachable for programs that already run. `gateway_address`: host:port by which sandboxes on
    other machines reach the same gateway; empty: not known. `env` is added
    to `DEFAULT_ENV`; nothing of the host's is. `directories`: absolute paths below a `WRITABLE` directory, made
    if missing. `cwd`: where programs begin that are not told otherwise.

    `build` is for providers with `containers` alone, others refuse it: a build context (path → bytes, `Dockerfile`
    among them) whose image the programs find around the places above. Its ENV and WORKDIR hold then, WORKDIR
    being the work directory in place of `/app`; `env` is added to them and `cwd` is not looked at. `without`: absolute paths below `/app`
    that the image's work directory has and the sandbox's has not, with all below them.
    """

    files: Mapping[str, File] = field(default_factory=dict)
    binds: Mapping[Path, str] = field(default_factory=dict)
    gateway_socket: Path | None = None
    gateway_address: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    cwd: str = WORK
    build: Mapping[str, bytes] | None = None
    without: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a program ended.

    `exit_code` follows the shell: 126 not executable, 127 not found, 128+n ended by signal n (137 when
    `killed_by` is not `NONE`). `stdout` and `stderr` are the first `Limits.output_bytes` of each;
    `truncated` says that more was dropped. `wall_s` covers the sandbox's own start (some milliseconds).
    `cpu_s` counts the whole tree where there are cgroups and is a lower bound elsewhere.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool
    killed_by: KilledBy
    wall_s: float
    cpu_s: float

    @property
    def timed_out(self) -> bool:
        return self.killed_by is KilledBy.TIMEOUT

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.killed_by is KilledBy.NONE


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The work directory against what was placed there: regular files only, in the order of their names.

    Paths are relative to `/app`. A file counts as modified when its bytes or its executable bit differ, and as deleted also where a directory
    is now. Of an image's work directory links and directories that are gone are among the deleted, too.
    `refused` holds at most 100 entries, `counts` how many there were in all, by reason; `complete` is false when any was refused, skipped
    directories apart.
    """

    added: Mapping[str, File]
    modified: Mapping[str, File]
    deleted: tuple[str, ...]
    refused: tuple[tuple[str, RefusedReason], ...]
    complete: bool
    counts: Mapping[RefusedReason, int] = field(default_factory=dict)


class Process(Protocol):
    """A program that runs. Ends with its sandbox at the latest."""

    @property
    def last_output(self) -> float:
        """`time.monotonic()` of the last byte on stdout or stderr; of the start before the first."""
        ...

    def cpu_s(self) -> float:
        """CPU seconds so far, descendants included (best effort without cgroups)."""
        ...

    async def read(self) -> tuple[bytes, bytes]:
        """Wait for output: (new stdout, new stderr) since the last call, both empty once it has ended.

        Bytes past `Limits.output_bytes` are not seen here either.
        """
        ...

    async def wait(self) -> ExecResult:
        """Wait until every process of the tree is dead. `SandboxError` if the platform failed. Repeatable."""
        ...

    async def kill(self, reason: KilledBy = KilledBy.CALLER) -> ExecResult:
        """End the whole tree now, then `wait()`. No-op once it has ended."""
        ...


class Sandbox(Protocol):
    """An open sandbox. Leaving the provider's context manager closes it."""

    @property
    def id(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    def path(self, inside: str) -> str:
        """What a program must use to reach `inside`: the same string wherever there is isolation."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        """Run to the end. `timeout_s` defaults to `Limits.wall_s`, `cwd` to the spec's; cancelling ends the program first."""
        ...

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        """Begin a long-running program, under the same limits."""
        ...

    async def put(self, files: Mapping[str, File]) -> None:
        """Place files as `SandboxSpec.files` does; never writes through a link (`PathRefused`).

        Files below `/app` become part of what `changed` compares against.
        """
        ...

    async def get(self, path: str, *, max_bytes: int = 8 << 20) -> bytes:
        """Read one regular file, links never followed. `FileNotFoundError`, `PathRefused`."""
        ...

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        """The work directory's difference against what was placed."""
        ...

    async def close(self) -> None:
        """End every program, then remove every file and cgroup. Idempotent."""
        ...


@runtime_checkable
class Provider(Protocol):
    """Opens sandboxes. Registered under the entry-point group `penstock.sandboxes`."""

    name: str
    isolated: bool
    """False if programs can see or touch the host: development only."""
    containers: bool
    """Whether it builds images: any Dockerfile then, by `SandboxSpec.build`, not only what needs no engine."""
    # A provider may say `own_system = True`: around the places above, programs find an image's files, not this machine's.

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh sandbox; gone, with every process in it, when the block ends. `SandboxFull` where its disk has no room for it."""
        ...

    async def problems(self) -> tuple[str, ...]:
        """What keeps this provider from opening a sandbox here, a sentence each, with the remedy. `SandboxFull` if that is only room."""
        ...
