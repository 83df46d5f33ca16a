"""The provider `container`: podman or docker on this machine, one container per sandbox.

Files are in directories of this machine (directory.py) that are bound into the container, as with bubblewrap. The container is started before the
first program (session.py). Side services have containers of their own (services.py). The engine's `exec` starts programs inside (program.py). If
`changed` has ended the container, it is recreated for the next program. The system around them is an image: `ContainerSettings.image`, or the one
built from a task's Dockerfile. A program takes some tenths of a second to start.

Differences from bubblewrap: a named user (users.py) is the user of this machine with the same number, without further groups, and cannot be root.
Programs are distinguished by control groups, which this process must be allowed to create below that of the container: as root, or where the engine
delegates it to this user (podman without root). Where it is not allowed, as a user in docker's group or with gVisor, ending a program ends everything
that runs in its sandbox, including the background of earlier programs. CPU seconds are then those of the container if they can be read, and otherwise
not counted.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from sandboxes import moves, tree
from sandboxes.artifacts import DIRECTORY, PlacedEntry, PlacedKind
from sandboxes.base import (
    GATEWAY_SOCKET,
    HOME,
    PLACED,
    WORK,
    WRITABLE,
    ArtifactLimits,
    Artifacts,
    ImageRefused,
    Process,
    Sandbox,
    SandboxError,
    SandboxFull,
    SandboxLost,
    SandboxSpec,
)
from sandboxes.bubblewrap import check_spec
from sandboxes.bubblewrap_sandbox import SOCKET_DIRECTORY
from sandboxes.cleanup_daemon import ensure_running
from sandboxes.container.engine import (
    ANY_PROCESSES,
    LABEL,
    ROOT,
    ContainerEngine,
    ContainerRun,
    Mount,
    error_text,
    write_profile,
)
from sandboxes.container.image import Image, account, built, image_id, made, owners, reads
from sandboxes.container.program import SCRIPT, ContainerProgram, Pipes, arguments
from sandboxes.container.services import Placement, SideServices, holder_mounts, hosts_line, running_services
from sandboxes.container.session import HOLD, INSIDE, MARK, ContainerSession
from sandboxes.container.settings import ContainerSettings
from sandboxes.directory import GRACE_S, DirectorySandbox, host_name
from sandboxes.disk_full import making
from sandboxes.etc import ETC_FILES
from sandboxes.from_environment import from_environment
from sandboxes.owner import prepare_root, records
from sandboxes.procfs import MARKER
from sandboxes.program import ProgramBounds
from sandboxes.reap import default_root, reap
from sandboxes.spawned import entering
from sandboxes.unstartable import Unstartable, unstartable
from sandboxes.users import AGENT, Account, own, refuse_user

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
"""The variables that the engine's client receives from our environment. A container receives none of them."""
_NO_ROOT = "containers have no user namespace, and their root would be this machine's: name another user, or remove it"
_OTHER_USER = 1 << 24
"""Offset from the user of a sandbox's programs to that of its process 1: beyond all users of sandboxes."""


class ContainerProvider:
    """Sandboxes by podman or docker. `root`: as for bubblewrap."""

    name = "container"
    isolated = True
    live_binds = True
    containers = True
    own_system = True
    side_services = True

    def __init__(self, settings: ContainerSettings | None = None, root: Path | None = None) -> None:
        self.settings = settings or from_environment(ContainerSettings, "container")
        self._engine = ContainerEngine(self.settings)
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
        refuse_user(self, spec)
        if spec.build is None and not self.settings.image:
            raise SandboxError(
                "sandbox.container.image: name the image in which tasks without a Dockerfile run"
            )
        if not self._ready:
            await self._prepare()
        ensure_running(self._root)
        image = (
            Image(name=self.settings.image, digest=await image_id(self._engine, self.settings.image))
            if spec.build is None
            else await built(self._engine, self._root, spec)
        )
        named = spec.user not in ("", AGENT, str(os.geteuid()))
        user = await account(self._engine, self._root, image.name, spec.user) if named else None
        if user is not None and user.uid == 0:
            raise ImageRefused(f"programs cannot run as {spec.user}: {_NO_ROOT}")
        if user is not None and spec.build is not None:
            image = replace(image, owners=await owners(self._engine, self._root, image))
        sandbox = ContainerSandbox(self._root, spec, engine=self._engine, image=image, account=user)
        images = {
            each.name: await made(
                self._engine,
                each.build,
                spec.build_timeout_s,
                f"the image of the service {each.name}, {each.shown},",
            )
            for each in spec.services
        }
        async with sandbox.opened(), sandbox.serving(images):
            yield sandbox

    @classmethod
    def refuses_user(cls, user: str) -> str | None:
        """Why programs do not run as `user`, in one clause. None: they may."""
        if own(user) == 0:
            return _NO_ROOT
        if user in ("", AGENT, str(os.geteuid())) or os.geteuid() == 0:
            return None
        return "sandboxes of the provider container have other users only where runners are root: name agent, or remove it"

    async def _prepare(self) -> None:
        """Once: find the engine, clean up after dead owners."""
        if missing := self._engine.missing():
            raise SandboxError(missing)
        await anyio.to_thread.run_sync(self._take_over)
        await self.remove_leftovers()
        self._ready = True

    async def remove_leftovers(self) -> int:
        """Remove the containers of sandboxes that are gone: an engine keeps the ended one of a killed owner whose network others had. Returns their
        number. SandboxError if the engine fails."""
        containers, known = await self._engine.left(self._root), {record.id for record in records(self._root)}
        if unknown := [
            container
            for container, owner_id in containers.items()
            if owner_id not in known and not reads(owner_id)
        ]:
            await self._engine.remove(*unknown)
        return len(unknown)

    def _take_over(self) -> None:
        with making(self._root):
            prepare_root(self._root)
            reap(self._root)

    async def problems(self) -> tuple[str, ...]:
        if missing := self._engine.missing():
            return (missing,)
        try:
            if (image := self.settings.image) and not await self._engine.has_image(image):
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
            ()
            if result.ok
            else (f"`true` ends with exit code {result.exit_code}: {error_text(result.stderr)}.",)
        )


class ContainerSandbox(DirectorySandbox):
    """One sandbox, and its container after the first program has started."""

    def __init__(
        self,
        root: Path,
        spec: SandboxSpec,
        *,
        engine: ContainerEngine,
        image: Image,
        account: Account | None = None,
    ) -> None:
        super().__init__(root, spec, None, own_user=os.geteuid() == 0, account=account)
        if account is not None:
            self.files_of = (account.uid, account.gid)
        self._engine = engine
        self._image = image
        self._session: ContainerSession | None = None
        self._services: SideServices | None = None
        self._entering = anyio.Lock()
        self._counts = itertools.count(1)

    def path(self, inside: str) -> str:
        return moves.moved(inside, self.work)

    @property
    def begins(self) -> str:
        return self.spec.cwd if self.spec.build is None else self._image.work

    @property
    def system(self) -> str:
        found = self._image.digest or self._image.name
        return found + (f" ({self._image.instead})" if self._image.instead else "")

    @property
    def work(self) -> str:
        return self.begins if self.spec.build is not None else WORK

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return moves.own_places({**self.defaults(), **self._image.env, **self.spec.env, **env}, self.work)

    @property
    def _user(self) -> tuple[int, int]:
        """uid and gid of programs."""
        return self.files_of or (os.geteuid(), os.geteuid())

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        if (reason := unstartable(argv)) is not None:
            return Unstartable(reason)
        # One at a time: a process that is in the container but in no part of its control group belongs to the newest program.
        async with self._entering:
            process = await super().start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)
            if isinstance(process, ContainerProgram):
                try:
                    await process.entered()
                except anyio.get_cancelled_exc_class():
                    with anyio.CancelScope(shield=True):
                        await process.kill()
                    raise
        return process

    @asynccontextmanager
    async def serving(self, images: Mapping[str, str]) -> AsyncIterator[None]:
        """The spec's side services run inside the block. `images`: name → image."""
        if not self.spec.services:
            yield
            return
        name = f"penstock-{self.id}-services"
        placement = Placement(
            directory=self.directory,
            holder=self._run(name, "session", holder_mounts(self.directory)),
            hosts=Mount(self.directory / "etc" / "hosts", "/etc/hosts"),
            limits=self.limits,
            labels=self._labels,
            marks={MARKER: self.id},
            owner=self._first_user,
            env=_client_env(),
        )
        async with running_services(self._engine, placement, self.spec.services, images) as self._services:
            try:
                yield
            finally:  # engines keep a container whose network another one has
                with anyio.CancelScope(shield=True):
                    await self._end_all()

    @property
    def _first_user(self) -> tuple[int, int] | None:
        """The user of process 1, if it is not our own."""
        return (self.uid + _OTHER_USER,) * 2 if self.uid >= 0 else None

    @property
    def _has_own_user(self) -> bool:
        """Whether the user of programs is this sandbox's alone. A named one is the same in every sandbox, and so is the kernel's count of its
        processes: one sandbox would use up another's."""
        return self.uid >= 0 and self.account is None

    @property
    def _labels(self) -> Mapping[str, str]:
        return {LABEL: self.id, ROOT: str(self._root)}

    def _run(
        self, name: str, directory: str, mounts: Sequence[Mount], shares: str | None = None
    ) -> ContainerRun:
        """A container whose process 1 ends with the owner. `directory`: the name of that of its pipes."""
        user = os.geteuid() if self._first_user is None else self._first_user[0]
        return ContainerRun(
            name=name,
            image=self._image.name,
            user=f"{user}:{user}",
            own_user=self._has_own_user,
            limits=self.limits,
            mounts=mounts,
            labels=self._labels,
            marks={MARKER: self.id, MARK: name},
            seccomp=self.directory / "seccomp.json",
            script=HOLD,
            argv=[directory],
            shares=shares,
        )

    async def prepare(self) -> None:
        if self._services is not None:
            self._services.check()
        if self._session is not None and self._session.alive:
            return
        self._check_session()
        await self.end_session()
        number = next(self._counts)
        directory = self.directory / "programs" / f"session-{number}"
        name = f"penstock-{self.id}-{number}"
        self._session = ContainerSession(self._engine, name, directory=directory, owner=self._first_user)
        shares = self._services.holder if self._services is not None else None
        run = self._run(name, directory.name, self._mounts(), shares)
        try:
            await self._session.begin(run, _client_env())
        except BaseException:  # also when cancelled: it may be half created
            await self.end_session()
            raise

    def launch(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        bounds: ProgramBounds,
        stdin: bytes | None,
    ) -> ContainerProgram:
        session = self._session
        assert session is not None
        uid, gid = self._user
        directory = self.directory / "programs" / str(next(self._counts))
        pipes = Pipes(directory, env, self.files_of, given=stdin is not None)
        part = None
        try:
            part = session.part(directory.name)
            processes = self.limits.processes if self._has_own_user or self.uid < 0 else ANY_PROCESSES
            words = arguments(directory.name, processes, cwd, argv)
            command = self._engine.exec(session.name, f"{uid}:{gid}", SCRIPT, words)
            # Engines pass ignored signals on.
            launch = entering([*self._engine.command, *command], _client_env())
            # Where the kernel counts the programs by their own user, the engine always has processes.
            counted = None if self._has_own_user else self.limits.processes
            return ContainerProgram(
                launch,
                replace(bounds, cgroup=session.group),
                stdin=stdin,
                session=session,
                pipes=pipes,
                part=part,
                processes=counted,
            )
        except BaseException:
            pipes.remove()
            if part is not None:
                part.remove()
            raise

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        self._check_session()
        return await super().changed(limits)

    def _check_session(self) -> None:
        """Raise SandboxLost if something outside ended the session. Its background programs are gone, so the sandbox must not continue."""
        if (session := self._session) is not None and not session.alive and not session.killed:
            raise (SandboxLost if session.sure else SandboxError)(
                "the container of a sandbox was ended from outside"
            )

    async def end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with anyio.CancelScope(shield=True):
                await session.end()

    async def _quiet(self) -> None:
        session = self._session
        if session is not None and session.alive and not session.parts and session.occupied:
            uid, gid = self._user
            script = f"kill -s TERM -- -1; sleep {GRACE_S:g}"
            await self._engine.call(*self._engine.exec(session.name, f"{uid}:{gid}", script, []))
        await super()._quiet()

    def _mounts(self) -> list[Mount]:
        files = self.directory / "files"
        mounts = [Mount(files / host_name(inside), self.path(inside), writable=True) for inside in WRITABLE]
        if self._image.work != WORK:
            mounts.append(Mount(files / host_name(WORK), self._image.work, writable=True))
        # Running programs must see files that are placed later.
        mounts += [Mount(files / host_name(inside), inside) for inside in moves.placed(self.work)]
        mounts.append(Mount(self.directory / "programs", INSIDE))
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
                tree.make_passable(self.directory / name)
            for inside in PLACED:
                if not (path := self.directory / "files" / host_name(inside)).is_dir():
                    self._make(path)
            (self.directory / "run").chmod(0o755)
            texts = {**ETC_FILES, "hosts": ETC_FILES["hosts"] + hosts_line(self.spec.services)}
            for name, text in texts.items():
                (self.directory / "etc" / name).write_text(self._named(text))
                (self.directory / "etc" / name).chmod(0o644)
            if (socket := self.spec.gateway_socket) is not None:
                link = self.directory / "run" / Path(GATEWAY_SOCKET).name
                link.symlink_to(f"{SOCKET_DIRECTORY}/{socket.name}")
            write_profile(self.directory / "seccomp.json")
            self._unpack()

    def _unpack(self) -> None:
        """Write the image's work directory. Files that the spec placed take precedence; paths in `without` are left out."""
        owner = self.files_of
        app = self.directory / "files" / host_name(WORK)
        absent = {path.removeprefix(f"{WORK}/") for path in self.spec.without}
        given = {PlacedKind.FILE, PlacedKind.LINK}
        excluded = absent | {path for path, placed in self._placed.items() if placed.kind in given}
        # Their permission bits are placed, not what is in them.
        made = {path for path, placed in self._placed.items() if placed.kind is PlacedKind.DIRECTORY}
        for path in self._image.directories:
            if path not in made and not _within(path, excluded):
                tree.make(app, path.split("/"), owner)
                self._placed[path] = DIRECTORY
        for path, file in self._image.content.items():
            if not _within(path, excluded) and not os.path.lexists(app / path):
                tree.write(app, path.split("/"), file, owner)
                self._placed[path] = PlacedEntry.of(file)
        for path, target in self._image.links.items():
            if not _within(path, excluded) and not os.path.lexists(app / path):
                tree.make(app, path.split("/")[:-1], owner)
                (app / path).symlink_to(target)
                if owner is not None:
                    os.lchown(app / path, *owner)
                self._placed[path] = PlacedEntry.link(target)
        if self.account is not None:
            for path, ids in self._image.owners.items():
                if (not path or not _within(path, excluded)) and os.path.lexists(app / path):
                    os.chown(app / path, *ids, follow_symlinks=not path)

    def _named(self, text: str) -> str:
        """A file of /etc that names the programs' user."""
        uid, gid = self._user
        agent, name = "agent:x:1000:1000:", "agent" if self.account is None else self.account.name
        text = text.replace(f":{HOME}:", f":{self.path(HOME)}:")
        return text.replace(agent, f"{name}:x:{uid}:{gid}:").replace("agent:x:1000:", f"{name}:x:{gid}:")


def _client_env() -> dict[str, str]:
    return {"PATH": _CLIENT_PATH, **{key: os.environ[key] for key in _CLIENT if key in os.environ}}


def _within(path: str, covered: Collection[str]) -> bool:
    """Whether `path` or one of its parent directories is in `covered`."""
    return path in covered or any(path[: at.start()] in covered for at in re.finditer("/", path))
