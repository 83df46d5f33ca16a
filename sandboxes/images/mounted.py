"""The writable layers of one sandbox over an image, from their owner's side: image_mount.py makes them, in a child of the joiner.

One lies over the work directory. The other, if the image has further places that programs may write, lies over the whole image: only those places are
shown of it.
"""

from __future__ import annotations

import enum
import os
import shutil
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxes import join, tree
from sandboxes.base import SandboxError
from sandboxes.image_mount import ELSEWHERE, IMAGE, OF_WORK
from sandboxes.images.owners import Ids
from sandboxes.images.store import Image

_MOUNT_S = 60.0


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
    """An open layer. `base`: the path by which this process reaches the work directory as programs see it, `elsewhere` that of the root directory
    above the other places. `enter`: the command that enters the namespace of the mounts. `system`, `work` and `whole`: the paths there of the image,
    of the work directory, and of the root directory above the other places."""

    kind: Layering
    base: Path
    system: Path
    work: Path
    elsewhere: Path
    whole: Path
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


def open_layer(
    kind: Layering,
    image: Image,
    directory: Path,
    owner: Ids | None,
    *,
    places: Sequence[str] = (),
    places_of: Ids | None = None,
) -> Layer:
    """Lay a new layer, `directory`/files/app, over the image's work directory, and another one, `directory`/files/elsewhere, over `places`.

    OSError if the kernel refuses this kind; SandboxError if the joiner fails. Blocks for milliseconds, or for as long as a copy takes.

    `owner`: the (user, group) of this machine that owns the image's files, None: ours; `places_of`: the same for those in places. `directory` must
    exist, with files/app in it.
    """
    uid, gid = (-1, -1) if owner is None else owner
    if (kind is Layering.IDMAPPED and uid < 0) or (kind is Layering.USER and uid >= 0):
        raise OSError("only root maps users" if uid < 0 else "root maps users instead")
    lower, upper = image.root / image.work.lstrip("/"), directory / OF_WORK.upper
    mode = stat.S_IMODE(lower.stat().st_mode)
    os.chmod(upper, mode | 0o700)
    if kind is Layering.COPY:
        copy(lower, upper, owner)
        beyond = directory / ELSEWHERE.upper
        if places:
            tree.make_passable(beyond)
            _copy_places(image.root, beyond, places, places_of)
        return Layer(kind=kind, base=upper, system=image.root, work=upper, elsewhere=beyond, whole=beyond)
    mounts_of = [(OF_WORK, owner), *([(ELSEWHERE, places_of)] if places else [])]
    tree.make_passable(directory / IMAGE)
    for names, ids in mounts_of:
        for name in names.all:
            if name != OF_WORK.upper:
                tree.make_passable(directory / name)
        if ids is not None:
            os.chown(directory / names.overlay, *ids)
    task: dict[str, Any] = {
        "base": str(directory),
        "image": str(image.root),
        "work": image.work,
        "uid": uid,
        "gid": gid,
        "elsewhere": ((-1, -1) if places_of is None else places_of) if places else (),
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
        base=Path(f"/proc/self/fd/{view}", OF_WORK.merged),
        system=directory / IMAGE,
        work=directory / OF_WORK.merged,
        elsewhere=Path(f"/proc/self/fd/{view}", ELSEWHERE.merged),
        whole=directory / ELSEWHERE.merged,
        enter=(*enter, "--"),
        fds=(mounts, users, view),
        line=line,
    )


def _copy_places(root: Path, target: Path, places: Sequence[str], owner: Ids | None) -> None:
    for place in places:
        source = root / place.lstrip("/")
        tree.make(target, place.lstrip("/").split("/"), owner)
        if source.is_dir():
            copy(source, target / place.lstrip("/"), owner)
            os.chmod(target / place.lstrip("/"), stat.S_IMODE(source.stat().st_mode))


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
