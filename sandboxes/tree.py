"""File trees that somebody hostile may be writing to at the same time.

Every operation walks from an open directory, one name at a time, and never follows a link: a path that is
swapped for a link between two steps leads to `PathRefused`, not out of the tree. Nothing here recurses as deep
as a program likes to dig.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxes.base import File, PathRefused, RefusedReason, SandboxError

MAX_DEPTH = 100
"""A tree deeper than this counts as over its disk limit; real projects stay below 60."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ENTER = stat.S_IRUSR | stat.S_IXUSR
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Usage:
    """Disk space (allocated bytes) and directory entries below a directory."""

    bytes: int
    files: int
    too_deep: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One directory entry: its path relative to the tree, and how to open it without walking again."""

    path: str
    name: str
    parent_fd: int
    stat: os.stat_result
    depth: int


def write(base: Path, parts: Sequence[str], file: File, owner: tuple[int, int] | None) -> None:
    """Write `file` at `base/parts`, making directories on the way; `owner` is (uid, gid) when we are root.

    A link or file at the last part is replaced, one before it is refused.
    """
    label = "/".join(parts)
    fd = _enter(base, parts[:-1], label, owner, create=True)
    temporary = f".penstock-{secrets.token_hex(8)}"
    try:
        out = os.open(temporary, _CREATE, 0o600, dir_fd=fd)
        try:
            with os.fdopen(out, "wb") as sink:
                sink.write(file.data)
                if owner is not None:
                    os.fchown(sink.fileno(), *owner)
                os.fchmod(sink.fileno(), file.mode & 0o777)
            os.rename(temporary, parts[-1], src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=fd)
            raise
    except IsADirectoryError as error:
        raise PathRefused(label, RefusedReason.SPECIAL) from error
    finally:
        os.close(fd)


def make(base: Path, parts: Sequence[str], owner: tuple[int, int] | None) -> None:
    """Make the directory `base/parts`, and those on the way. A link or file anywhere is refused."""
    os.close(_enter(base, parts, "/".join(parts), owner, create=True))


def read(base: Path, parts: Sequence[str], max_bytes: int) -> bytes:
    """The bytes of the regular file `base/parts`. `FileNotFoundError`, `PathRefused`."""
    label = "/".join(parts)
    fd = _enter(base, parts[:-1], label, None, create=False)
    try:
        return read_at(fd, parts[-1], label, max_bytes).data
    finally:
        os.close(fd)


def read_at(parent_fd: int, name: str, label: str, max_bytes: int) -> File:
    """One regular file of an open directory, at most `max_bytes` long."""
    fd = _open_file(parent_fd, name, label)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise PathRefused(label, RefusedReason.SPECIAL)
        # Read one byte past the limit instead of trusting the size: the file may grow meanwhile.
        if status.st_size <= max_bytes:
            with os.fdopen(fd, "rb", closefd=False) as source:
                data = source.read(max_bytes + 1)
            if len(data) <= max_bytes:
                return File(data, stat.S_IMODE(status.st_mode) & 0o777)
        raise PathRefused(label, RefusedReason.TOO_LARGE)
    finally:
        os.close(fd)


def walk(
    base: Path, skip: frozenset[str] = frozenset(), depth: int = MAX_DEPTH, *, opening: bool = False
) -> Iterator[Entry]:
    """Every entry below `base`, directories before their content, sorted by name.

    A directory at `depth`, or one that cannot be opened, is yielded but not entered; `opening`: one of ours can, whatever its permissions.
    `base` itself always can, and stays open. A directory called as in `skip` is not yielded at all. An entry's `parent_fd` is open until the
    next one is asked for.
    """
    fd = os.open(base, _DIRECTORY) if os.access(base, os.R_OK | os.X_OK) else _unlocked(None, base)[0]
    try:
        yield from _walk(fd, "", 1, skip, depth, opening)
    finally:
        os.close(fd)


def usage(base: Path) -> Usage:
    """What lies below `base`. Allocated blocks, so that a sparse file counts for what it costs. A directory of ours that is closed to us is open
    while it is looked into, and closed again."""
    total = files = 0
    too_deep = False
    for entry in walk(base, opening=True):
        files += 1
        total += entry.stat.st_blocks * 512
        too_deep |= entry.depth >= MAX_DEPTH
    return Usage(total, files, too_deep)


def remove(base: Path) -> None:
    """Delete `base` and everything below, however deep and whatever its permissions. No-op if it is gone.

    Directories are lifted to the top instead of entered, so neither paths nor recursion grow. No process may
    be writing there any more.
    """
    try:
        top = os.open(base, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        while names := os.listdir(top):
            for name in names:
                _remove_or_lift(top, name)
    except OSError as error:
        raise SandboxError(f"cannot remove {base}: {error}") from error
    finally:
        os.close(top)
    os.rmdir(base)


def _remove_or_lift(top: int, name: str) -> None:
    if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
        os.unlink(name, dir_fd=top)
        return
    fd = _open_own_directory(top, name)
    try:
        for child in os.listdir(fd):
            if stat.S_ISDIR(os.lstat(child, dir_fd=fd).st_mode):
                os.close(_open_own_directory(fd, child))  # a directory that moves must be writable itself
                os.rename(child, f"lifted-{secrets.token_hex(8)}", src_dir_fd=fd, dst_dir_fd=top)
            else:
                os.unlink(child, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top)


def _open_own_directory(parent_fd: int, name: str) -> int:
    """Open a directory that belongs to us although its permissions may say no."""
    if os.geteuid() != 0:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        finally:
            os.close(handle)
    return os.open(name, _DIRECTORY, dir_fd=parent_fd)


def _walk(
    fd: int, prefix: str, level: int, skip: frozenset[str], depth: int, opening: bool
) -> Iterator[Entry]:
    try:
        names = sorted(os.listdir(fd))
    except PermissionError:
        return
    for name in names:
        try:
            status = os.lstat(name, dir_fd=fd)
        except (FileNotFoundError, PermissionError):
            continue
        directory = stat.S_ISDIR(status.st_mode)
        if directory and name in skip:
            continue
        yield Entry(prefix + name, name, fd, status, level)
        if not directory or level >= depth:
            continue
        shut = (
            opening
            and status.st_mode & _ENTER != _ENTER
            and not os.access(name, os.R_OK | os.X_OK, dir_fd=fd)
        )
        try:
            inner, mode = _unlocked(fd, name) if shut else (os.open(name, _DIRECTORY, dir_fd=fd), None)
        except OSError:  # gone, swapped for something else, or not ours to enter
            continue
        try:
            yield from _walk(inner, f"{prefix}{name}/", level + 1, skip, depth, opening)
        finally:
            if mode is not None and stat.S_IMODE(os.fstat(inner).st_mode) == mode | _ENTER:
                os.fchmod(inner, mode)
            os.close(inner)


def _unlocked(parent_fd: int | None, name: str | Path) -> tuple[int, int]:
    """A directory that its owner may enter now, and the permissions that it had."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        os.chmod(f"/proc/self/fd/{handle}", mode | _ENTER)
        return os.open(".", _DIRECTORY, dir_fd=handle), mode
    finally:
        os.close(handle)


def _enter(
    base: Path, parts: Sequence[str], label: str, owner: tuple[int, int] | None, *, create: bool
) -> int:
    fd = os.open(base, _DIRECTORY)
    try:
        for part in parts:
            inner = _step(fd, part, label, owner, create=create)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return fd


def _step(fd: int, part: str, label: str, owner: tuple[int, int] | None, *, create: bool) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        if not create:
            raise
    except OSError as error:
        raise PathRefused(label, _reason(error, fd, part)) from error
    os.mkdir(part, 0o755, dir_fd=fd)
    try:
        inner = os.open(part, _DIRECTORY, dir_fd=fd)
    except OSError as error:
        raise PathRefused(label, _reason(error, fd, part)) from error
    os.fchmod(inner, 0o755)
    if owner is not None:
        os.fchown(inner, *owner)
    return inner


def _open_file(parent_fd: int, name: str, label: str) -> int:
    try:
        return os.open(name, _READ, dir_fd=parent_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PathRefused(label, _reason(error, parent_fd, name)) from error


def _reason(error: OSError, parent_fd: int, name: str) -> RefusedReason:
    if error.errno == errno.EACCES:
        return RefusedReason.UNREADABLE
    try:
        link = stat.S_ISLNK(os.lstat(name, dir_fd=parent_fd).st_mode)
    except OSError:
        link = False
    return RefusedReason.LINK if link else RefusedReason.SPECIAL
