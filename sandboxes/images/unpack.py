"""Writes the root file system of an image, whose author is not trusted, below one directory.

Every path is walked from an open directory, one name at a time, and no link is followed. A path below a link, an absolute path and `..` are refused.
Set-user-id bits and extended attributes are dropped, and so are devices, FIFOs and sockets. Everything belongs to the user who imports, and the
owners that the author gave are noted (owners.py).
Directories stay open to that user until `finish` sets their permissions.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sandboxes import tree
from sandboxes.base import ImageRefused
from sandboxes.images.owners import ROOT, Ids, Owners
from sandboxes.machine import pass_on

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 20
_NAME, _TARGET = 255, 4095  # bytes that Linux accepts
_DEPTH = tree.MAX_DEPTH - 1
FORMAT = b"penstock image 2\n"
"""Part of every digest: the rules by which a file system is made to fit (adapt.py) change with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of an image: its entries, counted with those that later layers remove, and its bytes unpacked."""

    files: int = 1_000_000
    bytes: int = 32 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A finished file system: its digest (64 hexadecimal digits), entries, bytes of its regular files, and their owners."""

    digest: str
    files: int
    bytes: int
    owners: Owners


def plain(name: str) -> tuple[str, ...]:
    """The parts of an archive's path; () is the root. ImageRefused for an absolute path, for `..` and for names that Linux does not accept."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts:
        raise ImageRefused(f"the image holds a path that leads out of it: {name[:200]!r}")
    if len(parts) > _DEPTH:
        raise ImageRefused(f"the image holds a path of more than {_DEPTH} parts: {name[:200]!r}")
    for part in parts:
        if "\0" in part or len(os.fsencode(part)) > _NAME:
            raise ImageRefused(f"the image holds a name that is too long: {part[:80]!r}")
    return parts


class Unpacker:
    """A file system that is being written below `root`, an empty directory of ours."""

    def __init__(self, root: Path, bounds: Bounds) -> None:
        self._root = root
        self._bounds = bounds
        self._files = 0
        self._bytes = 0
        self._modes: dict[tuple[str, ...], int] = {}
        self._owners: dict[tuple[str, ...], Ids] = {}  # those that are not root's
        self._digests: dict[int, bytes] = {}  # by inode: every regular file is written here
        self._top = os.open(root, _DIRECTORY)
        self._at: tuple[str, ...] = ()
        self._fd = os.dup(self._top)

    def close(self) -> None:
        for fd in (self._top, self._fd):
            os.close(fd)

    def directory(self, parts: tuple[str, ...], mode: int, owner: Ids = ROOT) -> None:
        """Make a directory, or set permissions and owner of one that exists. Anything else at its path is replaced."""
        self._modes[parts] = mode & 0o777
        self._belongs(parts, owner)
        if not parts:
            return
        self.count()
        fd, name = self._parent(parts)
        if not self._is_directory(fd, name):
            self._clear(fd, parts)
            os.mkdir(name, 0o700, dir_fd=fd)

    def file(self, parts: tuple[str, ...], mode: int, size: int, source: BinaryIO, owner: Ids = ROOT) -> None:
        """Write `size` bytes of `source` as a regular file. ImageRefused if there are fewer, or too many in all."""
        self.count(size)
        fd, name = self._place(parts)
        self._belongs(parts, owner)
        hasher = hashlib.sha256()
        with open(os.open(name, _CREATE, 0o600, dir_fd=fd), "wb") as sink:
            remaining = size
            while remaining:
                data = source.read(min(_PIECE, remaining))
                if not data:
                    raise ImageRefused(f"the image ends within {'/'.join(parts)!r}")
                hasher.update(data)
                sink.write(data)
                remaining -= len(data)
            os.fchmod(sink.fileno(), mode & 0o777)
            self._digests[os.fstat(sink.fileno()).st_ino] = hasher.digest()

    def link(self, parts: tuple[str, ...], target: str, owner: Ids = ROOT) -> None:
        """Write a symbolic link. Its target is not resolved."""
        if not target or "\0" in target or len(os.fsencode(target)) > _TARGET:
            raise ImageRefused(f"the image holds a link without a target: {'/'.join(parts)!r}")
        self.count()
        fd, name = self._place(parts)
        self._belongs(parts, owner)
        os.symlink(target, name, dir_fd=fd)

    def hard_link(self, parts: tuple[str, ...], target: tuple[str, ...]) -> None:
        """Give a second path to a regular file of the image."""
        self.count()
        fd, name = self._place(parts)
        parent, kept = self._open(target[:-1], create=False), target[-1] if target else ""
        try:
            if not kept or not stat.S_ISREG(os.lstat(kept, dir_fd=parent).st_mode):
                raise FileNotFoundError
            os.link(kept, name, src_dir_fd=parent, dst_dir_fd=fd, follow_symlinks=False)
            self._belongs(parts, self._owners.get(target, ROOT))
        except FileNotFoundError as error:
            raise ImageRefused(
                f"the image holds a hard link to no file of its own: {'/'.join(parts)!r}"
            ) from error
        finally:
            os.close(parent)

    def remove(self, parts: tuple[str, ...]) -> None:
        """Remove what an earlier layer has at this path, if it has something."""
        if parts:
            with contextlib.suppress(FileNotFoundError):
                self._clear(self._parent(parts, create=False)[0], parts)

    def empty(self, parts: tuple[str, ...], kept: Callable[[tuple[str, ...]], bool]) -> None:
        """Remove the entries of a directory that earlier layers made, which `kept` does not know."""
        try:
            fd = self._open(parts, create=False)
        except FileNotFoundError:
            return
        try:
            for name in os.listdir(fd):
                if not kept((*parts, name)):
                    self._clear(fd, (*parts, name))
                elif self._is_directory(fd, name):
                    self.empty((*parts, name), kept)
        finally:
            os.close(fd)

    def is_directory(self, parts: tuple[str, ...]) -> bool:
        """Whether every part of this path is a real directory."""
        try:
            os.close(self._open(parts, create=False))
        except (FileNotFoundError, ImageRefused):
            return False
        return True

    def exists(self, parts: tuple[str, ...]) -> bool:
        """Whether something is at this path, whose parents are real directories."""
        try:
            os.lstat(parts[-1], dir_fd=self._parent(parts, create=False)[0])
        except (FileNotFoundError, ImageRefused):
            return False
        return True

    def read(self, parts: tuple[str, ...], most: int) -> bytes:
        """At most `most` bytes of a regular file; b"" if there is none."""
        try:
            fd, name = self._parent(parts, create=False)
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        except (OSError, ImageRefused) as error:
            pass_on(error)
            return b""
        with open(file, "rb") as source:
            return source.read(most) if stat.S_ISREG(os.fstat(file).st_mode) else b""

    def finish(self, closed: tuple[str, ...], settings: bytes) -> Summary:
        """Set the permissions of directories, and compute the digest of all paths, permissions and bytes, and of `settings`.

        Every user may enter and list the directories that their owner may; those at and below `closed`, the work directory, keep their permissions.
        """
        lines: list[bytes] = []
        directories: list[tuple[str, ...]] = []
        owned: list[tuple[str, Ids]] = []
        size = 0
        for entry in tree.walk(self._root):
            parts = tuple(entry.path.split("/"))
            owned.append((entry.path, self._owners.get(parts, ROOT)))
            mode, kind, what = stat.S_IMODE(entry.stat.st_mode), "file", b""
            if stat.S_ISDIR(entry.stat.st_mode):
                kind, mode = "directory", self._final(parts, closed)
                directories.append(parts)
            elif stat.S_ISLNK(entry.stat.st_mode):
                kind, mode = "link", 0
                what = os.fsencode(os.readlink(entry.name, dir_fd=entry.parent_fd))
            else:
                what = self._digests[entry.stat.st_ino].hex().encode()
                size += entry.stat.st_size
            lines.append(
                b"%s %o %d:%s %d:%s\n"
                % (
                    kind.encode(),
                    mode,
                    len(what),
                    what,
                    len(os.fsencode(entry.path)),
                    os.fsencode(entry.path),
                )
            )
        for parts in reversed(directories):  # a parent that becomes closed comes after its children
            fd, name = self._parent(parts, create=False)
            os.chmod(name, self._final(parts, closed), dir_fd=fd)
        os.fchmod(self._top, 0o755)
        owners = Owners.of(iter(owned), "/".join(closed))
        hashed = FORMAT + settings + b"\n" + owners.text().encode() + b"\n" + b"".join(sorted(lines))
        return Summary(digest=hashlib.sha256(hashed).hexdigest(), files=len(lines), bytes=size, owners=owners)

    def _belongs(self, parts: tuple[str, ...], owner: Ids) -> None:
        if owner == ROOT:
            self._owners.pop(parts, None)
        else:
            self._owners[parts] = owner

    def _final(self, parts: tuple[str, ...], closed: tuple[str, ...]) -> int:
        mode = self._modes.get(parts, 0o755) | 0o700
        if parts[: len(closed)] == closed and parts != closed:
            return mode
        return mode | 0o055

    def count(self, size: int = 0) -> None:
        """Count one more entry of an archive. ImageRefused above the limits."""
        self._files += 1
        self._bytes += size
        if size < 0 or self._files > self._bounds.files or self._bytes > self._bounds.bytes:
            raise ImageRefused(
                f"the image is larger than {self._bounds.bytes >> 20} MB or {self._bounds.files} files"
                " (sandbox.images.most_mb, sandbox.images.most_files)"
            )

    def _place(self, parts: tuple[str, ...]) -> tuple[int, str]:
        """The parent of a path, and the name there, which is free now."""
        if not parts:
            raise ImageRefused("the image holds a file in place of its root directory")
        fd, name = self._parent(parts)
        self._clear(fd, parts)
        return fd, name

    def _parent(self, parts: tuple[str, ...], *, create: bool = True) -> tuple[int, str]:
        if parts[:-1] != self._at:
            fd = self._open(parts[:-1], create=create)
            os.close(self._fd)
            self._fd, self._at = fd, parts[:-1]
        return self._fd, parts[-1]

    def _open(self, parts: Sequence[str], *, create: bool) -> int:
        fd = os.dup(self._top)
        try:
            for at, part in enumerate(parts):
                inner = self._step(fd, part, "/".join(parts[: at + 1]), create=create)
                os.close(fd)
                fd = inner
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _step(self, fd: int, part: str, path: str, *, create: bool) -> int:
        try:
            return os.open(part, _DIRECTORY, dir_fd=fd)
        except FileNotFoundError:
            if not create:
                raise
        except OSError as error:
            pass_on(error)
            raise ImageRefused(f"the image holds a path below a link or a file: {path[:200]!r}") from error
        self.count()
        self._owners.pop(tuple(path.split("/")), None)
        os.mkdir(part, 0o700, dir_fd=fd)
        return os.open(part, _DIRECTORY, dir_fd=fd)

    def _is_directory(self, fd: int, name: str) -> bool:
        try:
            return stat.S_ISDIR(os.lstat(name, dir_fd=fd).st_mode)
        except FileNotFoundError:
            return False

    def _clear(self, fd: int, parts: tuple[str, ...]) -> None:
        if not self._is_directory(fd, parts[-1]):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(parts[-1], dir_fd=fd)
            return
        if self._at[: len(parts)] == parts:  # the open directory goes with it
            self._at = ("\0",)
        tree.remove(Path(f"/proc/self/fd/{fd}", parts[-1]))
        self._modes.pop(parts, None)
