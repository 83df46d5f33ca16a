"""The writable layer of one sandbox over an image's work directory, from its owner's side: image_mount.py makes it, in a child of the joiner."""

from __future__ import annotations

import enum
import os
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxes import join, tree
from sandboxes.base import SandboxError
from sandboxes.image_mount import MERGED
from sandboxes.images.owners import Ids
from sandboxes.images.store import Image

_MOUNT_S = 60.0
_PLACES = ("image", "lower", MERGED, "overlay")


class Layering(enum.StrEnum):
    """How a sandbox gets a work directory that it may write, from an image that it may not."""

    IDMAPPED = "overlayfs over an idmapped mount"
    USER = "overlayfs in a user namespace"
    FUSE = "fuse-overlayfs"
    COPY = "copy"

    @classmethod
    def candidates(cls, *, own_user: bool) -> tuple[Layering, ...]:
        """Those to try on this machine, the best first. `own_user`: we are root, and every sandbox has its own user."""
        fuse = (
            (cls.FUSE,)
            if shutil.which("fuse-overlayfs") and os.access("/dev/fuse", os.R_OK | os.W_OK)
            else ()
        )
        return (cls.IDMAPPED if own_user else cls.USER, *fuse, cls.COPY)


@dataclass(slots=True, kw_only=True)
class Layer:
    """An open layer. `base`: the path by which this process reaches the work directory as programs see it. `enter`: the command that enters the
    namespace of the mounts. `system` and `work`: the paths there of the image and of the work directory."""

    kind: Layering
    base: Path
    system: Path
    work: Path
    enter: tuple[str, ...] = ()
    fds: tuple[int, ...] = ()
    line: socket.socket | None = None

    def close(self) -> None:
        """Take the mounts away, unless a process still uses them."""
        for fd in self.fds:
            os.close(fd)
        self.fds = ()
        if self.line is not None:
            self.line.close()
            self.line = None


def open_layer(kind: Layering, image: Image, directory: Path, owner: Ids | None) -> Layer:
    """Lay a new layer, `directory`/files/app, over the image's work directory. OSError if the kernel refuses this kind; SandboxError if the joiner
    fails. Blocks for milliseconds, and for a copy as long as the work directory takes.

    `owner`: the (user, group) of this machine that owns the image's files, None: ours. `directory` must exist, with files/app in it.
    """
    uid, gid = (-1, -1) if owner is None else owner
    if (kind is Layering.IDMAPPED and uid < 0) or (kind is Layering.USER and uid >= 0):
        raise OSError("only root maps users" if uid < 0 else "root maps users instead")
    lower, upper = image.root / image.work.lstrip("/"), directory / "files" / "app"
    mode = stat.S_IMODE(lower.stat().st_mode)
    os.chmod(upper, mode | 0o700)
    if kind is Layering.COPY:
        copy(lower, upper, owner)
        return Layer(kind=kind, base=upper, system=image.root, work=upper)
    for name in _PLACES:
        tree.make_passable(directory / name)
    if uid >= 0:
        os.chown(directory / "overlay", uid, gid)
    task: dict[str, Any] = {
        "base": str(directory),
        "image": str(image.root),
        "work": image.work,
        "uid": uid,
        "gid": gid,
        "kind": kind.value,
        "fuse": shutil.which("fuse-overlayfs") or "",
    }
    line = join.mount(task)
    try:
        line.settimeout(_MOUNT_S)
        message, fds = join.answer(line)
    except BaseException:
        line.close()
        raise
    if len(fds) != 3:
        line.close()
        for fd in fds:
            os.close(fd)
        if "failed" not in message:
            raise SandboxError("the process that mounts images has ended")
        raise OSError(message["errno"], message["failed"])
    mounts, users, view = fds
    here = f"/proc/{os.getpid()}/fd"
    enter: tuple[str, ...] = ("nsenter", f"--mount={here}/{mounts}")
    if uid < 0:
        enter = ("nsenter", f"--user={here}/{users}", "--preserve-credentials", f"--mount={here}/{mounts}")
    return Layer(
        kind=kind,
        base=Path(f"/proc/self/fd/{view}", MERGED),
        system=directory / "image",
        work=directory / MERGED,
        enter=(*enter, "--"),
        fds=(mounts, users, view),
        line=line,
    )


def copy(source: Path, target: Path, owner: Ids | None) -> None:
    """Copy a work directory, as far as it consists of directories, files and links, to the empty directory `target`, for `owner`."""
    modes: list[tuple[Path, int]] = []
    for entry in tree.walk(source):
        place, mode = target / entry.path, entry.stat.st_mode
        if stat.S_ISDIR(mode):
            place.mkdir()
            modes.append((place, stat.S_IMODE(mode)))
        elif stat.S_ISLNK(mode):
            place.symlink_to(os.readlink(entry.name, dir_fd=entry.parent_fd))
        else:
            with open(
                os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=entry.parent_fd), "rb"
            ) as body:
                with place.open("xb") as sink:
                    shutil.copyfileobj(body, sink, 1 << 20)
                    os.fchmod(sink.fileno(), stat.S_IMODE(mode))
        if owner is not None:
            os.chown(place, *owner, follow_symlinks=False)
    for place, permissions in reversed(modes):
        place.chmod(permissions)
