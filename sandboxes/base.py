"""The sandbox port: the interface of a provider, and the values that cross it.

A *sandbox* is a private file tree plus a way to run programs against it. Its parts, as the programs see them:

=====================  ============================================================================
`/app`                 the work directory (the current directory of every program); `changed()` diffs it
`/tmp /logs /home/agent`  writable, empty at the start, not part of the diff; `/home/agent` is `$HOME`
`/tests /solution`     read-only for programs; empty or absent until the caller places something there
`/run/penstock/gateway.sock`  the gateway, if the spec names a socket: the only way out
`binds`                read-only, at the paths that the spec gives
=====================  ============================================================================

Each kind of fault has its own type. A fault of the *program* is data (`ExecResult`, `PathRefused`). A fault of the
*platform* is a `SandboxError`. A fault of the *caller* is a `ValueError`.

All programs of a sandbox share one *session*: processes, loopback, ports, sockets, files. `exec` and `wait` return when the program's own process
ends (the *foreground*). Processes that it started and left running (the *background*) live on, and later programs can reach them. Their output is
read and dropped. The background ends when the sandbox closes, when `changed` reads the work directory, when it or an ancestor exceeds a limit, and
together with the program that started it if that program is ended (by a limit, `kill`, or a cancelled `exec`). Ending a program does not end
processes that earlier programs started. With `SandboxSpec.background` false, everything that a program started is dead when its result is returned.
"""

from __future__ import annotations

import enum
import hashlib
import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

WORK = "/app"
"""The work directory of a task that names no other."""
HOME = "/home/agent"
"""The home directory of programs."""
WRITABLE = (WORK, "/tmp", "/logs", HOME)
"""Directories that programs may write. All other places are read-only or absent."""
PLACED = ("/tests", "/solution")
"""Directories that only the caller may write, through `files` or `put`."""
GATEWAY_SOCKET = "/run/penstock/gateway.sock"
"""The path of the gateway's Unix socket inside a sandbox."""
DEFAULT_ENV: Mapping[str, str] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
}
"""The base environment of every program."""


class SandboxError(RuntimeError):
    """Signals that a sandbox failed to do something (no namespaces, no disk, a process that does not die).

    Programs that ran in the sandbox may have caused this: they used up its processes, or do not die. Only `SandboxLost`, `MachineFault` and
    `SandboxFull` are certainly the platform's fault.
    """


class SandboxLost(SandboxError):
    """Signals that something outside ended the sandbox or its program: a kill by the host, a lost node, a broken connection. No program inside
    can cause this."""


class MachineFault(SandboxError):
    """Signals that this machine failed what we do for a sandbox: no descriptors, a disk that is full or fails (machine.py). No program inside can
    cause this, so a disk that a sandbox over its own limit may have filled is another error."""


class SandboxFull(SandboxError):
    """Signals that the disk under the sandboxes accepts no more data (full, over its quota, read-only). The sandbox was not opened and left no files.

    Raised only by `open` and `problems`. It is not a statement about the work: wait until there is space, then open it again.
    """


class SandboxSpent(SandboxError):
    """Signals that a sandbox is gone as a whole because its programs used up a limit, for example when a cluster ends their pod. The programs
    caused this. Running programs report the same by `ExecResult.killed_by`. Their files cannot be read any more."""


def same_kind(error: BaseException) -> SandboxError:
    """A new error with the same message and type (the same party at fault) as `error`, for each task that waits for a program."""
    kinds = (SandboxLost, SandboxSpent, MachineFault, SandboxError)
    return next((kind for kind in kinds if isinstance(error, kind)), SandboxError)(str(error))


class ImageRefused(ValueError):
    """Signals that a task's image cannot be built, or contains something that no sandbox accepts. The task's fault; one sentence names the cause."""


class DownloadFailed(ImageRefused):
    """Signals a build that a server or the network failed: the same build may succeed later."""


class BuildTimedOut(ImageRefused):
    """Signals a build that its time limit ended: a server that stalls may be at fault."""


class BuildOutOfSpace(ImageRefused):
    """Signals a build in which a program found no room to write: the disk, a quota or the task may be at fault."""


class MissingBase(ImageRefused):
    """Signals an image that a build begins with and that is not there."""


class PathRefused(Exception):
    """Signals that a path inside is not a plain file that may cross the boundary. The program causes this."""

    def __init__(self, path: str, reason: RefusedReason) -> None:
        super().__init__(f"{path}: {reason.value}")
        self.path = path
        self.reason = reason


class RefusedReason(enum.Enum):
    """Why a file was not copied out."""

    LINK = "is a symbolic link, or is reached through one"
    OUTSIDE = "is a symbolic link that may lead out of the work directory"
    SPECIAL = "is not a regular file"
    TOO_LARGE = "is larger than the limit for one file"
    SPARSE = "is far larger than the disk space it occupies"
    TOO_MANY = "comes after the largest number of files"
    TOTAL = "comes after the largest total size"
    NAME = "has a name that is not UTF-8"
    DEPTH = "lies too deep"
    LONG = "has a path of more than 4,000 bytes"
    UNREADABLE = "cannot be read"


class Lost(enum.Enum):
    """The properties that the copy of a file or directory lacks."""

    SET_USER_ID = "set-user-id bit"
    SET_GROUP_ID = "set-group-id bit"
    STICKY = "sticky bit"
    HARD_LINK = "hard link"
    """The path is another name of a file that the copy has twice."""
    ATTRIBUTES = "extended attributes"
    ACCESS_LIST = "access control list"


class KilledBy(enum.Enum):
    """The cause of a program's end. `NONE` if it ended by itself."""

    NONE = "none"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CPU = "cpu"
    DISK = "disk"
    OUTPUT = "output"
    CALLER = "caller"


@dataclass(frozen=True)
class File:
    """A regular file's bytes and permission bits."""

    data: bytes
    mode: int = 0o644

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    @cached_property
    def content(self) -> str:
        """The hex sha256 of its bytes."""
        return hashlib.sha256(self.data).hexdigest()

    def open(self) -> BinaryIO:
        """The content as a stream."""
        return io.BytesIO(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A regular file whose content lies at `source` on this machine: `size` bytes that stay unchanged while it is used.

    Raises OSError where it is read, and ValueError if it holds another number of bytes.
    """

    source: Path
    size: int
    mode: int = 0o644
    content: str | None = field(default=None, compare=False)
    """A name that only files with these bytes have, if one is known."""

    @property
    def data(self) -> bytes:
        """The whole content. Only for files that are known to be small."""
        body = self.source.read_bytes()
        if len(body) != self.size:
            raise ValueError(f"{self.source} holds {len(body)} bytes instead of {self.size}")
        return body

    def open(self) -> BinaryIO:
        """The content as a stream."""
        return self.source.open("rb")


AnyFile = File | StoredFile
"""A file, with its bytes in memory or on this machine."""


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in a build context."""

    target: str


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory in a build context that is empty, or has other permission bits than 755."""

    mode: int = 0o755


BuildEntry = AnyFile | Link | Folder
"""An entry of the directory from which an image is built."""


def digest_of(file: AnyFile) -> bytes:
    """sha256 of a file's content, read in pieces."""
    digest = hashlib.sha256()
    with file.open() as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The resource limits of a sandbox. A program that reaches a limit is ended, and `ExecResult.killed_by` names the limit. Background programs are
    ended too; then the result of each program that runs at that moment names the limit.

    `memory_mb` and `processes` apply to all programs of a sandbox together, background included (at the process limit, `fork`
    fails inside and nothing is killed). `cpu_s` applies to one program with its descendants for as long as they live, `wall_s` to its foreground.
    `disk_mb` and `disk_files` apply to everything writable, and to deleted files that programs hold open. `cpus`: cores of all programs
    together, for providers that limit them (`limits_cores`); 0: the provider's own setting, or all; more than the machine has: all.
    `output_bytes` is how much of stdout and of stderr is kept: the
    rest is read and dropped, and 16 times as much ends the program.
    """

    memory_mb: int = 512
    processes: int = 128
    cpu_s: float = 120.0
    disk_mb: int = 256
    disk_files: int = 50_000
    wall_s: float = 120.0
    output_bytes: int = 1 << 20
    cpus: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLimits:
    """Which files may be copied out of the work directory.

    `ratio` bounds a file's size over the disk space it occupies (a sparse file is the archive bomb of a diff).
    Directories with a name in `skip` are not searched, at any depth. `memory_bytes`: how much is read into memory; what comes after it is
    copied below the sandbox's own directory, as `StoredFile`, and stays there until the sandbox closes. None: everything is in memory. A provider
    whose files are on other machines may keep more in memory.
    """

    files: int = 2_000
    file_bytes: int = 8 << 20
    total_bytes: int = 32 << 20
    ratio: float = 100.0
    depth: int = 32
    skip: frozenset[str] = frozenset({"__pycache__"})
    memory_bytes: int | None = None


SERVICE_START_S = 60.0
"""Seconds that the container of a side service may take to start."""


class ServiceState(enum.Enum):
    """The state of another side service that one waits for."""

    STARTED = "service_started"
    HEALTHY = "service_healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHealth:
    """A program that succeeds in a side service's container once it is ready. Seconds. Docker's rules: `retries` failures in a row end the wait,
    and those before `start_period_s` or the first `interval_s` do not count."""

    argv: tuple[str, ...]
    interval_s: float = 30.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    start_interval_s: float = 5.0
    retries: int = 3

    @property
    def longest_s(self) -> float:
        """The most seconds until it is decided."""
        return (
            max(self.start_period_s, self.interval_s)
            + self.start_interval_s
            + (self.retries + 1) * (self.timeout_s + self.interval_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideService:
    """A program next to a sandbox, in a container of its own: a database, an API server.

    `build`: its image's build context. `entrypoint` replaces that of the image, `command` its arguments; None: the image's own. `names`: more
    names by which it is reached. `volumes`: directories of its own that outlive nothing. `after`: other services that it waits for. `shown`: how
    sentences call its image.
    """

    name: str
    build: Mapping[str, BuildEntry]
    shown: str
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    work_dir: str | None = None
    user: str | None = None
    names: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    health: ServiceHealth | None = None
    after: Mapping[str, ServiceState] = field(default_factory=dict)

    @property
    def longest_s(self) -> float:
        """The most seconds from its start until it serves."""
        return SERVICE_START_S + (self.health.longest_s if self.health is not None else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The description of a sandbox to open.

    `files`: absolute path inside (below a `WRITABLE` or `PLACED` directory) → file, placed before any program
    runs. `binds`: host path → absolute path inside, read-only, visible to the sandbox's unprivileged user.
    `gateway_socket`: host path of a Unix socket with mode 0666, alone in its directory. The directory is
    bound, so that running programs can reach a restarted gateway. `gateway_address`: host:port by which sandboxes on
    other machines reach the same gateway; None: not known. `env` is added
    to `DEFAULT_ENV`; the host's environment is not. `directories`: absolute paths below a `WRITABLE` directory, created
    if missing. `modes`: absolute paths of directories, as of files → permission bits; these are created too, and get their bits last.
    `links`: absolute path, as of files → the target of the symbolic link at that path. It is written, never followed. `cwd`: the
    default working directory of programs.

    `build` is only for providers with `containers`; others refuse it. It is a build context (path → entry, including
    `Dockerfile`). Programs find its image around the places above. The image's ENV and WORKDIR apply, and WORKDIR
    is the work directory in place of `/app`, also where it is one of the places above (moves.py). `env` is added to them and `cwd` is ignored.
    `without`: absolute paths below `/app` that are left out of the image's work directory, with everything below them. `build_timeout_s`: seconds
    in which the image must be built; 0: the provider's own time.

    `prebuilt`, next to `build`: a context that begins with an existing image. The provider takes this image where it has or gets it, and else makes
    `build`, which may be the same.

    `image` is only for providers that keep images; others refuse it. It is the digest or the name of an image in the provider's store. Programs
    find it around the places above, read-only. Its ENV, WORKDIR and `without` apply as for `build`; `cwd` counts, and `/app` in it is WORKDIR.

    `writable`: absolute paths of files or directories that programs are to write as well; directories are made if the image lacks them. Providers
    with `writes_elsewhere` let programs write those of the image's directories that hold data (elsewhere.py); then `files`, `links`, `modes` and
    `without` may name paths there. A path from which the image serves programs is left out. Others ignore it.

    `user`: the user of all programs, a name or a uid; empty: the sandbox's own (users.py). Placed files belong to it. ImageRefused if the image
    has no such user.

    `background`: whether processes that a program leaves running live on. Where results are judged they must not.

    `services` are only for providers with `side_services`; others refuse them. They are started before the first program, each after those that it
    waits for, and live as long as the sandbox. The sandbox reaches them by name, they reach it as `main`; nothing else is reachable.
    """

    files: Mapping[str, AnyFile] = field(default_factory=dict)
    binds: Mapping[Path, str] = field(default_factory=dict)
    gateway_socket: Path | None = None
    gateway_address: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    modes: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORK
    build: Mapping[str, BuildEntry] | None = None
    prebuilt: Mapping[str, BuildEntry] | None = None
    image: str = ""
    without: tuple[str, ...] = ()
    build_timeout_s: float = 0.0
    writable: tuple[str, ...] = ()
    user: str = ""
    background: bool = True
    services: tuple[SideService, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a program ended.

    `exit_code` follows the shell: 126 not executable, 127 not found, 128+n ended by signal n (137 when
    `killed_by` is not `NONE`). `signal` is that signal by the wait status of the program's own process; 0: it ended by itself, maybe with
    an exit code of 128 and more, or over a limit that was noticed later. `stdout` and `stderr` are the first `Limits.output_bytes` of each;
    `truncated` states that more was dropped. `wall_s` covers the sandbox's own start (some milliseconds).
    `cpu_s` counts the whole tree with cgroups and is a lower bound without them.
    """

    exit_code: int
    signal: int = 0
    stdout: bytes
    stderr: bytes
    truncated: bool
    killed_by: KilledBy
    wall_s: float
    cpu_s: float

    @property
    def timed_out(self) -> bool:
        """Whether the time limit ended it."""
        return self.killed_by is KilledBy.TIMEOUT

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.exit_code == 0 and self.killed_by is KilledBy.NONE

    @property
    def stdout_cut(self) -> bool:
        """Whether `stdout` lacks the end of what was printed."""
        return self.truncated and len(self.stdout) >= len(self.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """The work directory against its placed content: regular files, symbolic links and directories, in the order of their names.

    Paths are relative to `/app`; those of an image's other places are absolute. A file counts as modified when its bytes or its permissions differ.
    It also counts as deleted where a directory, a link or a refused entry has replaced it. Missing links and directories of an image are among the
    deleted, too.
    `links`: new links or changed targets, by path; only those that stay in the work directory, or lead to
    the system's read-only places or, on an image, to its other places.
    `directories`: permission bits of the directories that must be recreated explicitly: empty ones, and those with other bits than 755.
    `refused` holds at most 100 entries; `counts` is the number of all refused entries, by reason. `complete` is false when any was refused, except
    skipped directories. `lost`: of each kind at most five paths that cross without it; `lost_counts` is the number of all. They change nothing else.
    """

    added: Mapping[str, AnyFile]
    modified: Mapping[str, AnyFile]
    deleted: tuple[str, ...]
    refused: tuple[tuple[str, RefusedReason], ...]
    complete: bool
    counts: Mapping[RefusedReason, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    directories: Mapping[str, int] = field(default_factory=dict)
    lost: tuple[tuple[str, Lost], ...] = ()
    lost_counts: Mapping[Lost, int] = field(default_factory=dict)


class Process(Protocol):
    """A running program. It ends with its sandbox at the latest."""

    @property
    def last_output(self) -> float:
        """`time.monotonic()` of the last byte on stdout or stderr; before the first byte, of the start."""
        ...

    def cpu_s(self) -> float:
        """CPU seconds so far of the program and its descendants alone (best effort without cgroups)."""
        ...

    async def read(self) -> tuple[bytes, bytes]:
        """Wait for output: (new stdout, new stderr) since the last call, both empty once it has ended.

        Bytes past `Limits.output_bytes` are not returned either.
        """
        ...

    async def wait(self) -> ExecResult:
        """Wait until its foreground has ended. `SandboxError` if the platform failed. Repeatable."""
        ...

    async def kill(self, reason: KilledBy = KilledBy.CALLER) -> ExecResult:
        """End it now with every process that it started, then `wait()`. No-op once its foreground has ended."""
        ...


class Sandbox(Protocol):
    """An open sandbox. Leaving the provider's context manager closes it."""

    @property
    def id(self) -> str:
        """The id of this sandbox, unique on this machine."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits with which it was opened."""
        ...

    def path(self, inside: str) -> str:
        """The path by which a program reaches `inside`. If the provider isolates, it is the same string, unless `inside` is in a place where the
        image has its work directory (moves.py)."""
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
        """Run to the end. `timeout_s` defaults to `Limits.wall_s`, `cwd` to the spec's. Cancelling ends the program first."""
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
        """Start a long-running program, under the same limits."""
        ...

    async def put(
        self,
        files: Mapping[str, AnyFile],
        *,
        links: Mapping[str, str] | None = None,
        modes: Mapping[str, int] | None = None,
    ) -> None:
        """Place files, links and directories as the spec of the same names does; never writes through a link (`PathRefused`).

        What lies below `/app` becomes part of what `changed` compares against.
        """
        ...

    async def get(self, path: str, *, max_bytes: int = 8 << 20) -> bytes:
        """Read one regular file, links never followed. `FileNotFoundError`, `PathRefused`."""
        ...

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        """End every process of the sandbox (SIGTERM, a second later SIGKILL), then compare the work directory with its placed content.
        Programs may be run again afterwards."""
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
    """Whether it builds images. Then it accepts any Dockerfile by `SandboxSpec.build`, not only those that need no engine."""
    # A provider may set `own_system = True`: around the places above, programs find an image's files, not this machine's. It may set
    # `only_where_needed = True`: a task that its own system can serve is opened without `build`; and `live_binds = True`: bound directories are
    # this machine's own, so that programs reach Unix sockets in them. `refuses_user(name)` says why it runs no programs as that user, in one clause;
    # without it, a provider has the sandbox's own user alone. Its sandboxes may have `system`, the name of the system around them (system.py).
    # It may set `side_services = True`: it takes `SandboxSpec.services`; and `limits_cores = False`, known from its first sandbox on: `Limits.cpus`
    # does not hold. It may set `writes_elsewhere = True`: on an image, programs may write the directories that hold data (`SandboxSpec.writable`).

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh sandbox; gone, with every process in it, when the block ends. `SandboxFull` if its disk has no space for it."""
        ...

    async def problems(self) -> tuple[str, ...]:
        """Why this provider cannot open a sandbox here, one sentence each, with the remedy. `SandboxFull` if only disk space is missing."""
        ...
