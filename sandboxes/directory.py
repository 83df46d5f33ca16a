"""What sandboxes kept in a directory of this machine have in common.

On disk: `<root>/<id>.json` (the owner's record) and `<root>/<id>/files/{app,tmp,logs,home,tests,solution}`. Files
belong to a user of the sandbox's own where we are root, so that sandboxes cannot touch one another even if one
gets out.
"""

from __future__ import annotations

import contextlib
import math
import os
import posixpath
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from sandboxes import artifacts, tree
from sandboxes.base import (
    DEFAULT_ENV,
    HOME,
    PLACED,
    WRITABLE,
    ArtifactLimits,
    Artifacts,
    ExecResult,
    File,
    Limits,
    Process,
    SandboxError,
    SandboxSpec,
)
from sandboxes.cgroups import Cgroup, Hierarchies
from sandboxes.looks import Looks
from sandboxes.owner import Owner, Record, record_path, worker
from sandboxes.program import Bounds, Program
from sandboxes.room import making
from sandboxes.unstartable import Unstartable, spawn

FIRST_UID = 0x7000_0000
"""Sandbox users are numbered from here: far above system, human and container ranges."""


class DirectorySandbox(ABC):
    """An open sandbox in a directory; implements `base.Sandbox` but for how a program is launched."""

    def __init__(
        self, root: Path, spec: SandboxSpec, hierarchies: Hierarchies | None, *, own_user: bool
    ) -> None:
        self.id = secrets.token_hex(8)
        self.spec = spec
        self.uid = FIRST_UID + secrets.randbelow(1 << 24) if own_user else -1
        self.directory = root / self.id
        self.cgroup: Cgroup | None = None
        self._root = root
        self._claim = -1
        self._hierarchies = hierarchies
        self._looks = Looks(self.directory / "files", spec.limits)
        self._placed: dict[str, artifacts.Placed] = {}
        self._programs: set[Program] = set()
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def limits(self) -> Limits:
        return self.spec.limits

    @property
    def begins(self) -> str:
        """Where programs begin that are not told otherwise."""
        return self.spec.cwd

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """All variables of a program that is given `env`."""
        return {**DEFAULT_ENV, **self.spec.env, **env}

    @abstractmethod
    def launch(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, bounds: Bounds, stdin: bytes | None
    ) -> Program:
        """Spawn a program. OSError and ValueError if the kernel takes no such arguments."""

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
        process = await self.start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)
        try:
            return await process.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await process.kill()
            raise

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
            raise ValueError(f"a program needs arguments and an absolute directory, not {argv!r} in {cwd!r}")
        if self._tasks is None:
            raise ValueError(f"sandbox {self.id} is closed")
        bounds = Bounds(
            self.limits,
            self.limits.wall_s if timeout_s is None else timeout_s,
            self._looks,
            self.cgroup,
        )
        program = spawn(partial(self.launch, argv, self.environment(env or {}), cwd, bounds, stdin))
        if isinstance(program, Unstartable):
            return program
        self._programs.add(program)
        self._tasks.start_soon(self._supervise, program)
        return program

    async def _supervise(self, program: Program) -> None:
        try:
            await program.run()
        finally:
            self._programs.discard(program)

    async def put(self, files: Mapping[str, File]) -> None:
        await anyio.to_thread.run_sync(self._put, files)

    def _put(self, files: Mapping[str, File]) -> None:
        owner = (self.uid, self.uid) if self.uid >= 0 else None
        for inside, file in files.items():
            try:
                self._place(inside, file, owner)
            except OSError as error:
                raise SandboxError(f"cannot place {inside}: {error}") from error

    def _place(self, inside: str, file: File, owner: tuple[int, int] | None) -> None:
        name, parts = locate(inside)
        base = self.directory / "files" / name
        if not base.is_dir():
            self._make(base)
        tree.write(base, parts, file, owner)
        if name == "app":
            self._placed["/".join(parts)] = artifacts.Placed.of(file)

    async def get(self, path: str, *, max_bytes: int = 8 << 20) -> bytes:
        name, parts = locate(path)
        return await anyio.to_thread.run_sync(tree.read, self.directory / "files" / name, parts, max_bytes)

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        work = self.directory / "files" / "app"
        return await anyio.to_thread.run_sync(
            artifacts.changed, work, self._placed, limits or ArtifactLimits()
        )

    async def close(self) -> None:
        """End every program, then remove every trace. Idempotent. `SandboxError` if something will not go."""
        self._tasks = None
        async with anyio.create_task_group() as group:
            for program in tuple(self._programs):
                group.start_soon(_end, program)
        await anyio.to_thread.run_sync(self._remove)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[DirectorySandbox]:
        """Make it, lend it, remove it."""
        failure: Exception | None = None
        try:
            await anyio.to_thread.run_sync(self._create)
            async with anyio.create_task_group() as group:
                self._tasks = group
                try:
                    yield self
                except Exception as error:  # noqa: BLE001 - the caller's own, kept out of an ExceptionGroup
                    failure = error
                finally:
                    with anyio.CancelScope(shield=True):
                        await self.close()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._remove)
        if failure is not None:
            raise failure

    def _create(self) -> None:
        names = self._hierarchies.mounts if self._hierarchies else ()
        directories = tuple(str(mount / "penstock" / self.id) for mount in names)
        with making(self._root):
            self._claim = Record(self.id, Owner.current(), directories, self.uid, worker()).write(self._root)
            (self.directory / "files").mkdir(parents=True)
            for path in (self.directory, self.directory / "files"):
                path.chmod(0o711)
            for inside in WRITABLE:
                self._make(self.directory / "files" / host_name(inside))
        if self._hierarchies is not None:  # no disk: a kernel that has no room for it is another failure
            self.cgroup = self._hierarchies.create(self.id, self.limits)
        owner = (self.uid, self.uid) if self.uid >= 0 else None
        with making(self._root):
            for inside, file in self.spec.files.items():
                self._place(inside, file, owner)
            for inside in self.spec.directories:
                name, parts = locate(inside)
                tree.make(self.directory / "files" / name, parts, owner)

    def _make(self, directory: Path) -> None:
        directory.mkdir()
        directory.chmod(0o755)
        if self.uid >= 0:
            os.chown(directory, self.uid, self.uid)

    def _remove(self) -> None:
        if self.cgroup is not None:
            self.cgroup.remove()
        tree.remove(self.directory)
        record = record_path(self._root, self.id)
        for path in (record, record.with_suffix(".new")):  # the latter is half a record, on a full disk
            path.unlink(missing_ok=True)
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1


async def _end(program: Program) -> None:
    with contextlib.suppress(SandboxError):  # whoever waits is told; what remains, the removal finds
        await program.kill()


def host_name(inside: str) -> str:
    """The name below `files/` of one of the directories inside."""
    return "home" if inside == HOME else inside.removeprefix("/")


def locate(inside: str) -> tuple[str, list[str]]:
    """Split a path inside into (name below `files/`, the parts below that). `ValueError` for any other place."""
    if "\0" not in inside and posixpath.normpath(inside) == inside:
        for directory in (*WRITABLE, *PLACED):
            if inside.startswith(f"{directory}/"):
                return host_name(directory), inside.removeprefix(f"{directory}/").split("/")
    places = ", ".join((*WRITABLE, *PLACED))
    raise ValueError(f"{inside!r} is not a plain path to a file below one of {places}")


def refuse_build(spec: SandboxSpec) -> None:
    """`ValueError` for an image: directories of this machine are all there is."""
    if spec.build is not None:
        raise ValueError("this sandbox builds no images: choose a provider with container support")


def ulimits(limits: Limits, *, alone: bool) -> str:
    """Shell commands for the limits that the kernel keeps per process; `alone`: no control group helps."""
    lines = [
        "ulimit -c 0",
        f"ulimit -f {limits.disk_mb * 2048}",  # blocks of 512 bytes in a POSIX shell
        f"ulimit -t {math.ceil(limits.cpu_s) + 1}",
        "ulimit -n 4096 2>/dev/null",
    ]
    if alone:
        lines.append(f"ulimit -d {limits.memory_mb * 1024}")
    return "; ".join(lines) + "; "
