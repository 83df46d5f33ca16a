"""Mounts the file system of one sandbox on an image, in a mount namespace of its own. Runs in a child of the joiner (join.py).

    <base>/image   the image, read-only
    <base>/lower   its work directory, read-only; as root, with the sandbox's user as the owner of every file (an idmapped mount)
    <base>/merged  overlayfs: what the sandbox writes over it lies in <base>/files/app
    <base>/{whole,elsewhere}  the same two over the whole image, for its places outside of the work directory: written to <base>/files/elsewhere

The namespace has no process: the owner of the sandbox holds its descriptor, and the kernel takes the mounts away with the last one. With
fuse-overlayfs, this process stays to hold the file system, until the owner closes its line or dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxes import user_namespace
from sandboxes.inside.confine import libc

_NEWNS, _NEWUSER = 0x0002_0000, 0x1000_0000
_REC, _SLAVE, _NOSUID, _NODEV = 0x4000, 0x8_0000, 2, 4
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
_AT_FDCWD, _AT_EMPTY_PATH, _CLONE_TREE, _CLOEXEC, _MOVE_EMPTY = -100, 0x1000, 1, 0o2000000, 4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 1, 2, 4, 0x10_0000
_PDEATHSIG = 1
_MOUNTED_S, _POLL_S = 10.0, 0.005
IMAGE = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """The directories of one layer, by name in the sandbox's own: what shows the image, what shows the layer over it, what is written, and what
    overlayfs needs."""

    lower: str
    merged: str
    upper: str
    overlay: str

    @property
    def all(self) -> tuple[str, ...]:
        return self.lower, self.merged, self.upper, self.overlay


OF_WORK = LayerNames(lower="lower", merged="merged", upper="files/app", overlay="overlay")
ELSEWHERE = LayerNames(
    lower="whole", merged="elsewhere", upper="files/elsewhere", overlay="overlay-elsewhere"
)


def mounted(task: dict[str, Any]) -> tuple[list[int], list[subprocess.Popen[bytes]]]:
    """Mount what `task` says, in new namespaces of this process. Returns descriptors of its mount namespace, its user namespace and its view of
    `base`, and the processes of its file systems. OSError if the kernel refuses.

    `task`: base, image, work (paths), uid and gid (-1: the owner's own), elsewhere (the uid and gid of a layer over the whole image, none: there is
    none), kind (a value of `Layering`), fuse (the program).
    """
    base, image = Path(task["base"]), Path(task["image"])
    if task["uid"] < 0:
        uid, gid = os.geteuid(), os.getegid()
        _call(libc.unshare(_NEWUSER | _NEWNS))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    else:
        _call(libc.unshare(_NEWNS))
    _call(libc.mount(b"none", b"/", None, _REC | _SLAVE, None))
    _place(_tree(image), base / IMAGE)
    layers = [(OF_WORK, image / task["work"].lstrip("/"), (task["uid"], task["gid"]))]
    if task["elsewhere"]:
        layers.append((ELSEWHERE, image, tuple(task["elsewhere"])))
    daemons: list[subprocess.Popen[bytes]] = []
    mapped: dict[tuple[int, int], int] = {}
    try:
        for names, lower, owner in layers:
            if task["kind"] == "fuse-overlayfs":
                _place(_tree(lower), base / names.lower)
                daemons.append(_fuse(task, base, names, owner))
                continue
            if owner[0] >= 0 and owner not in mapped:  # root's files belong to the sandbox's user
                mapped[owner] = user_namespace.made(
                    {"uid_map": f"0 {owner[0]} 1\n", "gid_map": f"0 {owner[1]} 1\n"}
                )
            _place(_tree(lower, mapped.get(owner, -1)), base / names.lower)
            _overlay(base, names, own=owner[0] < 0)
    except BaseException:
        end(daemons)
        raise
    fds = [
        os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        for path in ("/proc/self/ns/mnt", "/proc/self/ns/user", base)
    ]
    return fds, daemons


def serve(line: socket.socket, daemons: Sequence[subprocess.Popen[bytes]]) -> None:
    """Return when the owner has closed its end of the line, and the processes of the file systems are dead."""
    line.recv(1)
    end(daemons)


def end(daemons: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the processes of file systems."""
    for daemon in daemons:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()


def _overlay(base: Path, names: LayerNames, *, own: bool) -> None:
    options = _directories(base, names) + ",redirect_dir=off,metacopy=off,index=off"
    options += ",userxattr" if own else ""
    # Without `volatile`, taking the mount away writes the whole disk's cache out.
    for extra in (",volatile", ""):
        result = libc.mount(
            b"overlay",
            os.fsencode(base / names.merged),
            b"overlay",
            _NOSUID | _NODEV,
            (options + extra).encode(),
        )
        if result == 0:
            return
    _call(result)


def _directories(base: Path, names: LayerNames) -> str:
    return f"lowerdir={base / names.lower},upperdir={base / names.upper},workdir={base / names.overlay}"


def _fuse(
    task: dict[str, Any], base: Path, names: LayerNames, owner: tuple[int, int]
) -> subprocess.Popen[bytes]:
    options = _directories(base, names) + ",nosuid,nodev,noacl"
    if owner[0] >= 0:
        options += f",allow_other,squash_to_uid={owner[0]},squash_to_gid={owner[1]}"
    daemon = subprocess.Popen(
        [task["fuse"], "-f", "-o", options, str(base / names.merged)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    deadline = time.monotonic() + _MOUNTED_S
    while daemon.poll() is None and time.monotonic() < deadline:
        if f" {base / names.merged} " in Path("/proc/self/mountinfo").read_text():
            return daemon
        time.sleep(_POLL_S)
    daemon.kill()
    daemon.wait()
    raise OSError("fuse-overlayfs did not mount the image")


def _tree(path: Path, users: int = -1) -> int:
    """A read-only copy of the mount at `path`; with `users`, seen through that user namespace."""
    fd = _call(libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _CLONE_TREE | _CLOEXEC))
    flags = _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV | (_ATTR_IDMAP if users >= 0 else 0)
    attributes = struct.pack("QQQQ", flags, 0, 0, max(users, 0))
    _call(libc.syscall(_MOUNT_SETATTR, fd, b"", _AT_EMPTY_PATH, attributes, ctypes.c_size_t(len(attributes))))
    return fd


def _place(fd: int, path: Path) -> None:
    _call(libc.syscall(_MOVE_MOUNT, fd, b"", _AT_FDCWD, os.fsencode(path), _MOVE_EMPTY))
    os.close(fd)


def _call(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
