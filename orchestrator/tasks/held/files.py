"""A program's files on disk: their size, their removal, and changed modes. Never follows a link, at any depth."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

MAX_DEPTH = 64
"""A deeper tree counts as over the limit; the sandbox's own bound is higher."""
MAX_MODES = 5_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileUsage:
    """Bytes (of a sparse file, its apparent size) and entries. Counting stops once they exceed the limits or the tree is too deep: a program that
    keeps moving counted files to uncounted directories could otherwise prolong the count without end."""

    def __init__(self, most_bytes: int, most_files: int) -> None:
        self.most_bytes, self.most_files = most_bytes, most_files
        self.bytes = self.files = 0
        self.deep = False

    @property
    def over(self) -> bool:
        return self.deep or self.bytes > self.most_bytes or self.files > self.most_files

    def add(self, path: str | os.PathLike[str]) -> FileUsage:
        """Add the entries below `path`, also where the program has taken the permission to list it."""
        with contextlib.suppress(OSError):
            fd = enter(None, path)
            try:
                self._below(fd, 1)
            finally:
                os.close(fd)
        return self

    def _below(self, fd: int, depth: int) -> None:
        for name, status in _entries(fd):
            if self.over:
                return
            self.files += 1
            self.bytes += max(status.st_size, status.st_blocks * 512)
            if stat.S_ISDIR(status.st_mode):
                if depth >= MAX_DEPTH:
                    self.deep = True
                    continue
                with contextlib.suppress(OSError):
                    inner = enter(fd, name)
                    try:
                        self._below(inner, depth + 1)
                    finally:
                        os.close(inner)


def _entries(fd: int) -> Iterator[tuple[str, os.stat_result]]:
    for name in os.listdir(fd):
        with contextlib.suppress(OSError):
            yield name, os.stat(name, dir_fd=fd, follow_symlinks=False)


def enter(fd: int | None, name: str | os.PathLike[str]) -> int:
    """Open a directory inside an open one, or (`fd` None) by its path. If its owner has no access, the owner's permissions are set first."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=fd)
    except PermissionError:
        path_fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            os.chmod(f"/proc/self/fd/{path_fd}", 0o700)
        finally:
            os.close(path_fd)
        return os.open(name, _DIRECTORY, dir_fd=fd)


def clear(path: str) -> None:
    """Remove all entries below `path`. Directories are moved to the top, so neither paths nor recursion grow. No process of the program may be
    alive."""
    with contextlib.suppress(OSError):
        fd = os.open(path, _DIRECTORY)
        try:
            _clear(fd)
        finally:
            os.close(fd)


def _clear(fd: int) -> None:
    lifted = 0
    while names := os.listdir(fd):
        for name in names:
            with contextlib.suppress(IsADirectoryError, PermissionError):
                os.unlink(name, dir_fd=fd)
                continue
            inner = enter(fd, name)
            try:
                os.fchmod(inner, 0o700)
                for child in os.listdir(inner):
                    with contextlib.suppress(IsADirectoryError, PermissionError):
                        os.unlink(child, dir_fd=inner)
                        continue
                    os.close(enter(inner, child))
                    os.rename(child, f".lifted-{lifted}", src_dir_fd=inner, dst_dir_fd=fd)
                    lifted += 1
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=fd)


def shed(path: str, since_ns: int) -> None:
    """Remove entries written below `path` since then (a `st_ctime_ns`), and every directory that is too deep."""
    with contextlib.suppress(OSError):
        fd = enter(None, path)
        try:
            _shed(fd, since_ns, 1)
        finally:
            os.close(fd)


def _shed(fd: int, since_ns: int, depth: int) -> None:
    for name, status in _entries(fd):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(status.st_mode):
                if status.st_ctime_ns >= since_ns:
                    os.unlink(name, dir_fd=fd)
                continue
            inner = enter(fd, name)
            try:
                if depth >= MAX_DEPTH:
                    _clear(inner)
                else:
                    _shed(inner, since_ns, depth + 1)
            finally:
                os.close(inner)
            if status.st_ctime_ns >= since_ns:
                os.rmdir(name, dir_fd=fd)  # refused if something older is left in it


class Modes:
    """Permissions of the judge's files below some directories. `restore` undoes changes by the program, which has the same user."""

    def __init__(self, tops: list[str], alone: list[str], own: str) -> None:
        self._known: list[tuple[str, int, int]] = []
        for top in [*tops, *alone]:
            self._note(top)
        for top in tops:
            for parent, directories, names in os.walk(top):
                directories[:] = [name for name in directories if f"{parent}/{name}" != own]
                for name in [*directories, *names]:
                    self._note(f"{parent}/{name}")
                if len(self._known) > MAX_MODES:
                    break

    def _note(self, path: str) -> None:
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode):
                self._known.append((path, status.st_ino, stat.S_IMODE(status.st_mode)))

    def restore(self) -> None:
        """Directories come before their content."""
        for path, inode, mode in self._known:
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if status.st_ino == inode and stat.S_IMODE(status.st_mode) != mode:
                    os.chmod(path, mode)
