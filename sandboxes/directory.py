"""The common parts of sandboxes that are kept in a directory of this machine.

On disk: `<root>/<id>.json` (the owner's record) and `<root>/<id>/files/{app,tmp,logs,home,tests,solution}`. If we are root, files
belong to the sandbox's own user, so that sandboxes cannot touch each other even if a program
escapes.
"""

from __future__ import annotations

import math
import os
import posixpath
import secrets
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from sandboxes import artifacts, moves, procfs, tree
from sandboxes.base import (
    DEFAULT_ENV,
    HOME,
    PLACED,
    WORK,
    WRITABLE,
    AnyFile,
    ArtifactLimits,
    Artifacts,
    ExecResult,
    KilledBy,
    Limits,
    MachineFault,
    Process,
    SandboxError,
    SandboxSpec,
)
from sandboxes.cgroups import Cgroup, Hierarchies
from sandboxes.disk_full import NO_ROOM, making
from sandboxes.disk_usage import DiskUsage
from sandboxes.ending import ended_by, tasks_ended_by
from sandboxes.execution import to_its_end
from sandboxes.machine import fault
from sandboxes.owner import Owner, Record, record_path, worker
from sandboxes.program import ProgramBounds, SupervisedProgram
from sandboxes.system import of_this_machine
from sandboxes.unstartable import Unstartable, spawn
from sandboxes.users import MAX_IDS, Account, Range

GRACE_S = 1.0
"""Seconds between SIGTERM and SIGKILL for processes that still run when the work directory is read."""
FIRST_UID = 0x7000_0000
"""Sandbox users are numbered from here: far above system, human and container ranges."""


class DirectorySandbox(ABC):
    """An open sandbox in a directory; implements `base.Sandbox` except the launch of a program."""

    def __init__(
        self,
        root: Path,
        spec: SandboxSpec,
        hierarchies: Hierarchies | None,
        *,
        own_user: bool,
        users: Range | None = None,
        account: Account | None = None,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.spec = spec
        self.uid = FIRST_UID + secrets.randbelow(1 << 24) if own_user else -1
        self.users = users
        self.account = account or (users.account if users is not None else None)
        self.files_of: tuple[int, int] | None = (self.uid, self.uid) if own_user else None
        """The (user, group) of this machine that owns the files of programs. None: our own."""
        if users is not None:
            self.uid, self.files_of = users.first, users.owner
        self.directory = root / self.id
        self.cgroup: Cgroup | None = None
        self._root = root
        self._claim = -1
        self._hierarchies = hierarchies
        self._disk = DiskUsage(self.directory / "files", spec.limits, self.living)
        self._placed: dict[str, artifacts.PlacedEntry] = {}  # by path below /app, or by absolute path
        self._programs: set[SupervisedProgram] = set()
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def limits(self) -> Limits:
        return self.spec.limits

    @property
    def begins(self) -> str:
        """The default working directory of programs."""
        return self.spec.cwd

    @property
    def work(self) -> str:
        """The programs' name of the work directory in addition to `/app`."""
        return WORK

    @property
    def system(self) -> str:
        """The name of the system around the sandbox's own places (system.py)."""
        return of_this_machine()

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """All variables of a program that receives `env`."""
        return {**self.defaults(), **self.spec.env, **env}

    def defaults(self) -> dict[str, str]:
        """The variables that every program has."""
        places = {name: moves.moved(DEFAULT_ENV[name], self.work) for name in ("HOME", "TMPDIR")}
        return {**DEFAULT_ENV, **places, **({} if self.account is None else {"USER": self.account.name})}

    @abstractmethod
    def launch(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        bounds: ProgramBounds,
        stdin: bytes | None,
    ) -> SupervisedProgram:
        """Spawn a program. OSError and ValueError if the kernel refuses the arguments."""

    async def prepare(self) -> None:  # noqa: B027 - optional
        """Create everything that must exist before a program can be launched. `SandboxError` if that fails."""

    async def end_session(self) -> None:  # noqa: B027 - optional
        """End the session that holds programs together, and with it the processes that belong to no `SupervisedProgram`."""

    def living(self) -> list[int]:
        """The processes of all programs together, as far as they can be seen."""
        return list({pid for program in self._programs for pid in program.living()})

    def base(self, name: str) -> Path:
        """The path by which this process reaches a place, by its name: below `files/`, or of an image its absolute path inside."""
        return self.directory / "files" / name

    def lay(self) -> None:  # noqa: B027 - optional
        """Make what lies in the work directory before files are placed there. OSError, `SandboxError`."""

    @abstractmethod
    def path(self, inside: str) -> str: ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        return await to_its_end(await self.start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin))

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        cwd = self.begins if cwd is None else cwd
        if not argv or not cwd.startswith("/"):
            raise ValueError(
                f"a program needs arguments and an absolute directory, not {argv!r:.80} in {cwd!r:.80}"
            )
        if self._tasks is None:
            raise ValueError(f"sandbox {self.id} is closed")
        bounds = ProgramBounds(
            limits=self.limits,
            timeout_s=self.limits.wall_s if timeout_s is None else timeout_s,
            disk=self._disk,
            cgroup=self.cgroup,
            lasting=self.spec.background,
            together=self.living,
        )
        await self.prepare()
        if self._tasks is None:
            raise ValueError(f"sandbox {self.id} is closed")
        program = spawn(partial(self.launch, argv, self.environment(env or {}), cwd, bounds, stdin))
        if isinstance(program, Unstartable):
            return program
        self._programs.add(program)
        self._tasks.start_soon(self._supervise, program)
        return program

    async def _supervise(self, program: SupervisedProgram) -> None:
        try:
            await program.run()
        finally:
            self._programs.discard(program)

    async def put(
        self,
        files: Mapping[str, AnyFile],
        *,
        links: Mapping[str, str] | None = None,
        modes: Mapping[str, int] | None = None,
    ) -> None:
        try:
            await anyio.to_thread.run_sync(self._put, files, links or {}, modes or {})
        except MachineFault as error:
            # Its programs may have filled the disk before they were measured.
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in NO_ROOM and await self._disk.at_limit():
                raise SandboxError(f"{error}; the sandbox is at its limit of disk space") from error
            raise

    def _put(self, files: Mapping[str, AnyFile], links: Mapping[str, str], modes: Mapping[str, int]) -> None:
        inside = ""
        try:
            for inside, file in files.items():
                self._place(inside, file, self.files_of)
            self._furnish(self.files_of, (), links, modes)
        except OSError as error:
            raise fault(error, f"cannot place {inside}: {error}") from error

    def _place(self, inside: str, file: AnyFile, owner: tuple[int, int] | None) -> None:
        name, parts, base = self._based(inside)
        tree.write(base, parts, file, owner)
        self._note(name, parts, artifacts.PlacedEntry.of(file))

    def _based(self, inside: str) -> tuple[str, list[str], Path]:
        """Where a path inside lies; the directory below which it does is there."""
        name, parts = self.locate(inside)
        base = self.base(name)
        if not base.is_dir():
            self._make(base)
        return name, parts, base

    def locate(self, inside: str) -> tuple[str, list[str]]:
        """Split a path inside into a name for `base` and the parts below that. ValueError for a path where nothing can be placed."""
        return locate(moves.called(inside, self.work))

    def _note(self, name: str, parts: Sequence[str], entry: artifacts.PlacedEntry) -> None:
        """Remember what was placed where changes are looked for."""
        if name == "app":
            self._placed["/".join(parts)] = entry
        elif name.startswith("/"):
            self._placed["/".join((name, *parts))] = entry

    async def get(self, path: str, *, max_bytes: int = 8 << 20) -> bytes:
        name, parts = self.locate(path)
        return await anyio.to_thread.run_sync(tree.read, self.base(name), parts, max_bytes)

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        await self._quiet()
        return await anyio.to_thread.run_sync(self.compare, limits or ArtifactLimits())

    def compare(self, limits: ArtifactLimits) -> Artifacts:
        """The difference between the work directory and what was placed there."""
        return artifacts.changed(self.base("app"), self._placed, limits, called=self.work, spool=self.spool())

    def spool(self) -> Path:
        """A path that does not exist yet, next to the files of the sandbox, for copies of what its programs left."""
        return self.directory / f"left-{secrets.token_hex(4)}"

    async def _quiet(self) -> None:
        """End every process: SIGTERM, then SIGKILL after `GRACE_S`, so that they can write out their data."""
        if self._programs:
            for program in tuple(self._programs):
                await program.survey()
            procfs.send(self.living(), signal.SIGTERM)
            with anyio.move_on_after(GRACE_S):
                for program in tuple(self._programs):
                    program.hurry()
                    await program.over()
        with anyio.CancelScope(shield=True):
            await self._end_all()

    async def _end_all(self) -> None:
        programs = tuple(self._programs)
        for program in programs:
            program.end(KilledBy.CALLER)
        await self.end_session()
        for program in programs:
            await program.over()

    async def close(self) -> None:
        """End every program, then remove every trace. Idempotent. `SandboxError` if something cannot be removed."""
        self._tasks = None
        await self._end_all()
        await anyio.to_thread.run_sync(self._remove)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[DirectorySandbox]:
        """Create it, yield it, remove it."""
        async with ended_by(partial(anyio.to_thread.run_sync, self._remove)):
            await anyio.to_thread.run_sync(self._create)
            async with tasks_ended_by(self.close) as self._tasks:
                yield self

    def _create(self) -> None:
        names = self._hierarchies.mounts if self._hierarchies else ()
        directories = tuple(str(mount / "penstock" / self.id) for mount in names)
        with making(self._root):
            self._claim = Record(
                id=self.id,
                owner=Owner.current(),
                cgroups=directories,
                uid=self.uid,
                worker=worker(),
                users=1 if self.users is None else MAX_IDS,
            ).write(self._root)
            (self.directory / "files").mkdir(parents=True)
            if self.uid >= 0:  # its own user passes by its group; no other user of the machine does
                os.chown(self.directory, -1, self.uid)
            self.directory.chmod(0o700 if self.uid < 0 else 0o710)
            (self.directory / "files").chmod(0o711)
            for inside in WRITABLE:
                self._make(self.directory / "files" / host_name(inside))
        if self._hierarchies is not None:  # not on the disk: no room is another failure
            self.cgroup = self._hierarchies.create(self.id, self.limits)
        with making(self._root):
            self.lay()
            for inside, file in self.spec.files.items():
                self._place(inside, file, self.files_of)
            self._furnish(self.files_of, self.spec.directories, self.spec.links, self.spec.modes)

    def _furnish(
        self,
        owner: tuple[int, int] | None,
        directories: Sequence[str],
        links: Mapping[str, str],
        modes: Mapping[str, int],
    ) -> None:
        """Create directories and links. Permission bits that close a directory come last."""
        for inside, mode in {**dict.fromkeys(directories, 0o755), **modes}.items():
            name, parts, base = self._based(inside)
            tree.make(base, parts, owner)
            placed = artifacts.PlacedEntry.folder if inside in modes else artifacts.PlacedEntry.made
            self._note(name, parts, placed(mode))
        for inside, target in links.items():
            name, parts, base = self._based(inside)
            tree.link(base, parts, target, owner)
            self._note(name, parts, artifacts.PlacedEntry.link(target))
        for inside in sorted(modes, reverse=True):
            name, parts = self.locate(inside)
            tree.permit(self.base(name), parts, modes[inside])

    def _make(self, directory: Path) -> None:
        directory.mkdir()
        directory.chmod(0o755)
        if self.files_of is not None:
            os.chown(directory, *self.files_of)

    def _remove(self) -> None:
        try:
            if self.cgroup is not None:
                self.cgroup.remove()
            tree.remove(self.directory)
            record = record_path(self._root, self.id)
            # The latter is an incomplete record, left by a full disk.
            for path in (record, record.with_suffix(".new")):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise fault(error, f"cannot remove the sandbox {self.directory}: {error}") from error
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1


def host_name(inside: str) -> str:
    """The name below `files/` of a directory inside."""
    return "home" if inside == HOME else inside.removeprefix("/")


def locate(inside: str) -> tuple[str, list[str]]:
    """Split a path inside into (name below `files/`, the parts below that). `ValueError` for any other path."""
    if "\0" not in inside and posixpath.normpath(inside) == inside:
        for directory in (*WRITABLE, *PLACED):
            if inside.startswith(f"{directory}/"):
                return host_name(directory), inside.removeprefix(f"{directory}/").split("/")
    places = ", ".join((*WRITABLE, *PLACED))
    raise ValueError(f"{inside!r:.200} is not a plain path to a file below one of {places}")


def refuse_build(spec: SandboxSpec) -> None:
    """`ValueError` for an image: this provider has only directories of this machine."""
    if spec.build is not None:
        raise ValueError("this sandbox builds no images: choose a provider with container support")
    if spec.image:
        raise ValueError("this sandbox knows no images: choose the provider bubblewrap, with sandbox.images")
    refuse_services(spec)


def refuse_services(spec: SandboxSpec) -> None:
    """`ValueError` for side services: this provider has no containers next to a sandbox."""
    if spec.services:
        raise ValueError("this sandbox has no side services: choose the provider container")


def ulimits(limits: Limits, *, alone: bool) -> str:
    """Shell commands for the limits that the kernel enforces per process; `alone`: without a control group."""
    lines = [
        "ulimit -c 0",
        f"ulimit -f {limits.disk_mb * 2048}",  # blocks of 512 bytes in a POSIX shell
        f"ulimit -t {math.ceil(limits.cpu_s) + 1}",
        "ulimit -n 4096 2>/dev/null",
    ]
    if alone:
        lines.append(f"ulimit -d {limits.memory_mb * 1024}")
    return "; ".join(lines) + "; "
