"""A directory that holds a root file system, read as an image: what debootstrap writes, or an unpacked archive."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from sandboxes import tree
from sandboxes.base import ImageRefused
from sandboxes.images.owners import ROOT, Ids
from sandboxes.images.unpack import Unpacker, plain

_MAX_ID = 1 << 16
_VOLATILE = ("proc", "sys", "dev", "run", "tmp")
"""Directories whose content no sandbox shows."""


def copy(source: Path, target: Unpacker) -> None:
    """Copy every file, directory and link below `source`, which must not change. ImageRefused if it is not a directory, or cannot be read whole."""
    if source.is_symlink() or not source.is_dir():
        raise ImageRefused(f"{source} is not a directory with a root file system")
    for entry in entries(source, passing=_VOLATILE):
        if entry.path.partition("/")[0] in _VOLATILE and "/" in entry.path:
            continue
        parts, mode, owner = plain(entry.path), entry.stat.st_mode, _owner(entry.stat)
        if stat.S_ISDIR(mode):
            target.directory(parts, stat.S_IMODE(mode), owner)
        elif stat.S_ISLNK(mode):
            target.link(parts, os.readlink(entry.name, dir_fd=entry.parent_fd), owner)
        elif stat.S_ISREG(mode):
            with open(_opened(source, entry), "rb") as body:
                target.file(parts, stat.S_IMODE(mode), os.fstat(body.fileno()).st_size, body, owner)


def entries(source: Path, passing: Collection[str] = ()) -> Iterator[tree.TreeEntry]:
    """Every entry below `source`, as by `tree.walk`. ImageRefused for a directory that cannot be read, except in the directories `passing`."""
    if not os.access(source, os.R_OK | os.X_OK):
        raise _closed(source)
    for entry in tree.walk(source):
        if (
            stat.S_ISDIR(entry.stat.st_mode)
            and not os.access(entry.name, os.R_OK | os.X_OK, dir_fd=entry.parent_fd)
            and entry.path.partition("/")[0] not in passing
        ):
            raise _closed(source / entry.path)
        yield entry


def _opened(source: Path, entry: tree.TreeEntry) -> int:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(entry.name, flags, dir_fd=entry.parent_fd)
    except PermissionError as error:
        raise _closed(source / entry.path) from error


def _closed(path: Path) -> ImageRefused:
    return ImageRefused(f"{path} is closed to this user: permit reading, or do this as its owner")


def _owner(status: os.stat_result) -> Ids:
    """The owner of an entry. An ordinary user's copy of a file system does not keep it, and neither do subordinate users."""
    ids = status.st_uid, status.st_gid
    return ids if os.geteuid() == 0 and max(ids) < _MAX_ID else ROOT
