"""The default provider: bubblewrap, with its own namespace of every kind and without a network.

A sandbox has one *session* (session.py): namespaces, mounts and a process 1. Bubblewrap creates it before the first program, all programs share it,
and it is recreated for the next program if it has ended (bubblewrap_sandbox.py). Around their own places, programs find this machine's /usr, or the
image that the spec names (images/).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from sandboxes import cgroups, join, seccomp
from sandboxes.base import PLACED, WRITABLE, Sandbox, SandboxError, SandboxFull, SandboxSpec
from sandboxes.bubblewrap_sandbox import SYSTEM, BubblewrapSandbox
from sandboxes.cleanup_daemon import ensure_running
from sandboxes.directory import refuse_build, refuse_services
from sandboxes.disk_full import making
from sandboxes.etc import ETC_FILES
from sandboxes.from_environment import from_environment
from sandboxes.holder import INSIDE
from sandboxes.images.build import Builder
from sandboxes.images.mounted import Layering
from sandboxes.images.owners import OF_ROOT, of_places, read_system_file, within_range
from sandboxes.images.places import places
from sandboxes.images.sandbox import ImageSandbox, Layerings
from sandboxes.images.sandbox import check_spec as check_binds
from sandboxes.images.settings import ImageSettings
from sandboxes.owner import prepare_root
from sandboxes.reap import default_root, reap
from sandboxes.tools import bwrap, on_path
from sandboxes.users import FIRST_RANGE, MAX_IDS, RANGES, Range, find, own, refuse_user

_TAKEN = (
    *WRITABLE,
    *PLACED,
    *SYSTEM,
    "/usr",
    "/etc",
    "/proc",
    "/dev",
    "/run/penstock",
    "/run/penstock-host",
    INSIDE,
)


class BubblewrapProvider:
    """Sandboxes by bubblewrap. `root`: the directory of their files, a path that unprivileged users can traverse. `images`: where images are kept.

    `use_cgroups=False` forces the fallback (rlimits and polling of /proc) that is otherwise used only where
    control groups cannot be created. Memory is then limited by polling, and processes per program. `layering` forces one way to lay a writable
    directory over an image; otherwise the first sandbox finds the best one that this machine takes.
    """

    name = "bubblewrap"
    isolated = True
    live_binds = True
    writes_elsewhere = True
    containers = False
    """Of an instance: whether `images` names a directory."""
    only_where_needed = True
    limits_cores = False
    """Of an instance, from its first sandbox on: whether control groups that limit cores can be created."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        use_cgroups: bool = True,
        images: ImageSettings | None = None,
        layering: Layering | None = None,
    ) -> None:
        self._root = root or default_root()
        self._use_cgroups = use_cgroups
        self.images = images or from_environment(ImageSettings, "images")
        self._images = self.images.store()
        self.containers = self._images is not None
        self._layerings = Layerings(layering)
        self._hierarchies: cgroups.Hierarchies | None = None
        self._ready = False

    @classmethod
    def configured(cls, table: Mapping[str, Any]) -> BubblewrapProvider:
        """From `[sandbox.images]`. ValueError names the key."""
        return cls(images=ImageSettings(**table))

    @property
    def layering(self) -> Layering | None:
        """How sandboxes get a writable layer over an image; None before the first one."""
        return self._layerings.chosen

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        if self._images is None:
            refuse_build(spec)
        refuse_services(spec)
        check_spec(spec)
        refuse_user(self, spec)
        if not self._ready:
            await anyio.to_thread.run_sync(self._prepare)
        ensure_running(self._root)
        join.begin()
        instead = ""
        if self._images is not None and spec.build is not None:
            builder = Builder(self._images, self.images, task_s=spec.build_timeout_s)
            if spec.prebuilt is None:
                image = await builder.built(spec.build)
            else:
                image, instead = await builder.prebuilt_or_built(spec.prebuilt, spec.build)
            spec = replace(spec, image=image.digest, build=None, prebuilt=None)
        with contextlib.ExitStack() as stack:
            # The first sandbox of a process on an image reads the directories of its system.
            sandbox = await anyio.to_thread.run_sync(self._sandbox, spec, stack, instead)
            async with sandbox.opened():
                yield sandbox

    def _sandbox(
        self, spec: SandboxSpec, stack: contextlib.ExitStack, instead: str = ""
    ) -> BubblewrapSandbox:
        own_user = os.geteuid() == 0
        needs_nsenter = bool(spec.image) or own(spec.user) is None
        if needs_nsenter and shutil.which("nsenter") is None:
            raise SandboxError("nsenter is not installed: apt-get install util-linux")
        if self._images is None or not spec.image:
            users = _range(spec.user, ETC_FILES, "a sandbox without an image of its own", ())
            return BubblewrapSandbox(self._root, spec, self._hierarchies, own_user=own_user, users=users)
        image = stack.enter_context(self._images.using(spec.image))
        check_binds(spec, image)
        written = places(
            image.root,
            image.work,
            image.env,
            wanted=spec.writable,
            volumes=image.volumes,
            taken=spec.binds.values(),
        )
        owners = OF_ROOT
        if own(spec.user) is None:
            owners = image.owners
        etc = {name: read_system_file(image.root, f"etc/{name}") for name in ("passwd", "group")}
        more = of_places(owners, written).values()
        users = _range(spec.user, etc, "the image", owners.ids, more)
        return ImageSandbox(
            self._root,
            spec,
            self._hierarchies,
            own_user=own_user,
            users=users,
            owners=owners,
            image=image,
            layerings=self._layerings,
            places=written,
            instead=instead,
        )

    @classmethod
    def refuses_user(cls, user: str) -> str | None:
        """Why no sandbox of this process runs programs as `user`, in one clause. None: it may."""
        if own(user) is not None or os.geteuid() == 0:
            return None
        return "a user of its own needs subordinate users, which sandboxes have only where runners are root: name agent or root, or remove it"

    def _prepare(self) -> None:
        """Once: find the tools, clean up after dead owners, detect the available control groups."""
        if missing := _missing_tools():
            raise SandboxError(" ".join(missing))
        with making(self._root):
            prepare_root(self._root)
            if os.geteuid() == 0:
                _require_reachable(self._root, "the directory for sandboxes")
            reap(self._root)
        self._hierarchies = cgroups.detect() if self._use_cgroups else None
        self.limits_cores = self._hierarchies is not None and self._hierarchies.limits_cores
        self._ready = True

    async def problems(self) -> tuple[str, ...]:
        if missing := _missing_tools():
            return missing
        if self._images is not None and shutil.which("nsenter") is None:
            return ("nsenter is not installed: apt-get install util-linux.",)
        try:
            async with self.open(SandboxSpec()) as sandbox:
                result = await sandbox.exec(["true"], timeout_s=20)
        except SandboxFull:
            raise
        except (SandboxError, ValueError) as error:
            return (f"{error}.",)
        return () if result.ok else (f"`true` ends with exit code {result.exit_code} in a sandbox.",)


def _missing_tools() -> tuple[str, ...]:
    missing = []
    try:
        bwrap()
    except ValueError as error:
        reason = str(error) if on_path("bwrap") else "bwrap is not installed: apt-get install bubblewrap"
        missing.append(f"{reason}, or choose the sandbox `local` for development.")
    if shutil.which("setpriv") is None:
        missing.append(
            "setpriv is not installed: apt-get install util-linux, or choose the sandbox `local` for development."
        )
    if seccomp.program() is None:
        missing.append(
            "system calls cannot be filtered on this architecture: run sandboxes in containers, or as pods."
        )
    return tuple(missing)


def _range(
    user: str,
    etc: Mapping[str, str],
    where: str,
    owners: Collection[tuple[int, int]],
    more: Collection[tuple[int, int]] = (),
) -> Range | None:
    """The users of a sandbox whose programs run as `user`; None if it needs no range. `more`: further owners, as many as there is room for."""
    if own(user) is not None:
        return None
    account = find(user, etc["passwd"], etc["group"], where)
    return Range.of(
        account, within_range(account, owners, more), FIRST_RANGE + MAX_IDS * secrets.randbelow(RANGES)
    )


def check_spec(spec: SandboxSpec) -> None:
    """Raise `ValueError` for the caller's mistakes, before anything is created."""
    for outside, inside in spec.binds.items():
        if os.path.normpath(inside) != inside or not inside.startswith("/") or _overlaps(inside):
            raise ValueError(
                f"cannot bind {outside} at {inside!r}: choose a free absolute path such as /opt/name"
            )
        _require_reachable(outside, "a path bound into a sandbox")
    socket = spec.gateway_socket
    if socket is None:
        return
    if not socket.exists() or not stat.S_ISSOCK(socket.stat().st_mode):
        raise ValueError(f"{socket} is not a Unix socket: start the gateway first")
    _require_reachable(socket, "the gateway's socket")
    if socket.stat().st_mode & 0o006 != 0o006 and os.geteuid() == 0:
        raise ValueError(f"{socket} must have mode 0666: sandbox users connect to it")
    if neighbors := sorted(set(os.listdir(socket.parent)) - {socket.name}):
        raise ValueError(
            f"the gateway's socket must be alone in its directory, {socket.parent} holds {neighbors[0]}"
        )


def _overlaps(inside: str) -> bool:
    return inside == "/" or any(
        inside == taken or inside.startswith(f"{taken}/") or taken.startswith(f"{inside}/")
        for taken in _TAKEN
    )


def _require_reachable(path: Path, what: str) -> None:
    """Root's sandboxes run as users without rights: every user must be able to traverse every directory on the path."""
    real = path.resolve()
    if not real.exists():
        raise ValueError(f"{what} does not exist: {path}")
    if os.geteuid() != 0:
        return
    for parent in real.parents:
        if not parent.stat().st_mode & 0o001:
            raise ValueError(
                f"{what}, {path}, lies below {parent}, which lets no unprivileged user through:"
                f" move it, or chmod o+x {parent}"
            )
