"""The provider `container`: podman or docker on this machine, a container for every program of a sandbox.

Files lie in directories of this machine (directory.py) that are bound into each of its containers, as with bubblewrap; so only they carry
over from one program to the next, and nothing of a program outlives its container. The system around them is an image:
`ContainerSettings.image`, or the one that is built from a task's Dockerfile. A program takes some tenths of a second to start.

What differs from bubblewrap: limits of memory and processes hold for each program alone; what a program uses can be seen while it runs, and named
when it is too much, where this process may look at it (as root, or where the engine runs as the same user).
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread

from sandboxes import tree
from sandboxes.artifacts import DIRECTORY, LINK, Placed
from sandboxes.base import (
    DEFAULT_ENV,
    GATEWAY_SOCKET,
    PLACED,
    WORK,
    WRITABLE,
    Sandbox,
    SandboxError,
    SandboxFull,
    SandboxSpec,
)
from sandboxes.bubblewrap import ETC_FILES, SOCKET_DIRECTORY, check_spec
from sandboxes.container import program
from sandboxes.container.engine import LABEL, ROOT, Engine, Mount, Run, said, write_profile
from sandboxes.container.image import Image, built, reads
from sandboxes.container.program import INSIDE, MARK, SCRIPT, ContainerProgram
from sandboxes.container.settings import ContainerSettings, from_environment
from sandboxes.directory import DirectorySandbox, host_name
from sandboxes.heir import appoint
from sandboxes.owner import prepare_root, records
from sandboxes.procfs import MARKER
from sandboxes.program import Bounds, Launch
from sandboxes.reap import default_root, reap
from sandboxes.room import making

_CLIENT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CLIENT = (
    "HOME",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
    "CONTAINER_HOST",
    "CONTAINERS_CONF",
    "TMPDIR",
)
"""What the engine's client is told of our environment; a container is told nothing of it."""


class ContainerProvider:
    """Sandboxes by podman or docker. `root`: as for bubblewrap."""

    name = "container"
    isolated = True
    containers = True
    own_system = True

    def __init__(self, settings: ContainerSettings | None = None, root: Path | None = None) -> None:
        self.settings = settings or from_environment(ContainerSettings, "container")
        self._engine = Engine(self.settings)
        self._root = root or default_root()
        self._ready = False

    @classmethod
    def configured(cls, table: Mapping[str, Any]) -> ContainerProvider:
        """From `[sandbox.container]`. ValueError names the key."""
        return cls(ContainerSettings(**table))

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        check_spec(spec)
        if spec.build is None and not self.settings.image:
            raise SandboxError(
                "sandbox.container.image: name the image in which tasks without a Dockerfile run"
            )
        if not self._ready:
            await self._prepare()
        appoint(self._root)
        image = (
            Image(self.settings.image)
            if spec.build is None
            else await built(self._engine, self._root, spec.build, spec.limits)
        )
        sandbox = ContainerSandbox(self._root, spec, self._engine, image)
        async with sandbox.opened():
            yield sandbox

    async def _prepare(self) -> None:
        """Once: find the engine, take over from dead owners."""
        if missing := self._engine.missing():
            raise SandboxError(missing)
        await anyio.to_thread.run_sync(self._take_over)
        left, known = await self._engine.left(self._root), {record.id for record in records(self._root)}
        if unknown := [container for container, of in left.items() if of not in known and not reads(of)]:
            await self._engine.remove(*unknown)
        self._ready = True

    def _take_over(self) -> None:
        with making(self._root):
            prepare_root(self._root)
            reap(self._root)

    async def problems(self) -> tuple[str, ...]:
        if missing := self._engine.missing():
            return (missing,)
        try:
            if (image := self.settings.image) and (
                await self._engine.call("image", "inspect", image)
            ).returncode:
                command = f"{self.settings.engine} pull {image}"
                return (
                    f"sandbox.container.image: {self.settings.engine} has no image {image}: run `{command}`.",
                )
            async with self.open(SandboxSpec()) as sandbox:
                result = await sandbox.exec(["true"], timeout_s=60)
        except SandboxFull:
            raise
        except (SandboxError, ValueError) as error:
            return (f"{error}.",)
        return (
            () if result.ok else (f"`true` ends with exit code {result.exit_code}: {said(result.stderr)}.",)
        )


class ContainerSandbox(DirectorySandbox):
    """One sandbox; a container of its own for every program."""

    def __init__(self, root: Path, spec: SandboxSpec, engine: Engine, image: Image) -> None:
        super().__init__(root, spec, None, own_user=os.geteuid() == 0)
        self._engine = engine
        self._image = image
        self._count = 0

    def path(self, inside: str) -> str:
        return inside

    @property
    def begins(self) -> str:
        return self.spec.cwd if self.spec.build is None else self._image.work

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**DEFAULT_ENV, **self._image.env, **self.spec.env, **env}

    def launch(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, bounds: Bounds, stdin: bytes | None
    ) -> ContainerProgram:
        for argument in argv:
            if "\0" in argument:
                raise ValueError("embedded null byte")
            os.fsencode(argument)
        self._count += 1
        name = f"penstock-{self.id}-{self._count}"
        user = self.uid if self.uid >= 0 else os.geteuid()
        own = self.directory / "programs" / str(self._count)
        pipes = program.prepare(own, env, (user, user) if self.uid >= 0 else None)
        try:
            run = Run(
                name, self._image.name, f"{user}:{user}", self.uid >= 0, self.limits, [*self._mounts(), Mount(own, INSIDE)],
                {LABEL: self.id, ROOT: str(self._root)}, {MARKER: self.id, MARK: name},
                self.directory / "seccomp.json", SCRIPT, [cwd, *argv],
            )  # fmt: skip
            known = {key: os.environ[key] for key in _CLIENT if key in os.environ}
            launch = Launch(self._engine.run(run), {"PATH": _CLIENT_PATH, **known})
            return ContainerProgram(launch, bounds, stdin, self._engine, name, pipes)
        except BaseException:
            for fd in pipes:
                os.close(fd)
            raise

    def _mounts(self) -> list[Mount]:
        files = self.directory / "files"
        mounts = [Mount(files / host_name(inside), inside, writable=True) for inside in WRITABLE]
        if self._image.work != WORK:
            mounts.append(Mount(files / host_name(WORK), self._image.work, writable=True))
        placed = [(files / host_name(inside), inside) for inside in PLACED]
        mounts += [Mount(source, inside) for source, inside in placed if source.is_dir()]
        mounts += [Mount(self.directory / "etc" / name, f"/etc/{name}") for name in ETC_FILES]
        mounts += [Mount(outside.resolve(), inside) for outside, inside in self.spec.binds.items()]
        if self.spec.gateway_socket is not None:
            mounts.append(Mount(self.spec.gateway_socket.parent.resolve(), SOCKET_DIRECTORY))
            mounts.append(Mount(self.directory / "run", str(Path(GATEWAY_SOCKET).parent)))
        return mounts

    def _create(self) -> None:
        super()._create()
        with making(self._root):
            for name in ("etc", "run", "programs"):
                (self.directory / name).mkdir(mode=0o711)
            (self.directory / "run").chmod(0o755)
            user = self.uid if self.uid >= 0 else os.geteuid()
            for name, text in ETC_FILES.items():
                (self.directory / "etc" / name).write_text(text.replace(":1000:", f":{user}:"))
                (self.directory / "etc" / name).chmod(0o644)
            if (socket := self.spec.gateway_socket) is not None:
                link = self.directory / "run" / Path(GATEWAY_SOCKET).name
                link.symlink_to(f"{SOCKET_DIRECTORY}/{socket.name}")
            write_profile(self.directory / "seccomp.json")
            self._unpack()

    def _unpack(self) -> None:
        """What the image has in its work directory, below whatever the spec placed there, and but for what it leaves out."""
        owner = (self.uid, self.uid) if self.uid >= 0 else None
        app = self.directory / "files" / host_name(WORK)
        absent = {path.removeprefix(f"{WORK}/") for path in self.spec.without}
        covered = absent | self._placed.keys()
        for path in self._image.directories:
            if not _within(path, covered):
                tree.make(app, path.split("/"), owner)
                self._placed[path] = DIRECTORY
        for path, file in self._image.content.items():
            if not _within(path, covered) and not os.path.lexists(app / path):
                tree.write(app, path.split("/"), file, owner)
                self._placed[path] = Placed.of(file)
        for path, target in self._image.links.items():
            if not _within(path, covered) and not os.path.lexists(app / path):
                tree.make(app, path.split("/")[:-1], owner)
                (app / path).symlink_to(target)
                if owner is not None:
                    os.lchown(app / path, *owner)
                self._placed[path] = LINK


def _within(path: str, covered: Collection[str]) -> bool:
    """Whether `path` or a directory that it lies in is one of those."""
    return path in covered or any(path[: at.start()] in covered for at in re.finditer("/", path))
