"""File trees to which a hostile process may write at the same time.

Every operation walks from an open directory, one name at a time, and never follows a link. A path that is
swapped for a link between two steps leads to `PathRefused`, not out of the tree. The recursion depth is bounded, so a deep tree
of a program cannot exhaust the stack.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxes.base import AnyFile, File, PathRefused, RefusedReason, SandboxError, StoredFile
from sandboxes.machine import fault, pass_on

MAX_DEPTH = 100
"""A tree deeper than this counts as over its disk limit; real projects stay below 60."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO must not wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ENTER = stat.S_IRUSR | stat.S_IXUSR
_PIECE = 1 << 20  # bytes
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True, kw_only=True)
class TreeUsage:
    """Disk space (allocated bytes) and directory entries, counted until they exceed the limits, or a tree is too deep."""

    most_bytes: int
    most_files: int
    bytes: int = 0
    files: int = 0
    too_deep: bool = False

    @property
    def over(self) -> bool:
        return self.too_deep or self.bytes > self.most_bytes or self.files > self.most_files

    @property
    def at_limit(self) -> bool:
        """Over the limits, or exactly at that of bytes, where a single file ends."""
        return self.over or self.bytes == self.most_bytes

    def add(self, base: Path) -> TreeUsage:
        """Add everything below `base`. Allocated blocks are counted, so that a sparse file counts for its real space. One of our directories that
        is closed to us is opened while it is read, and closed again.

        It ends at the limit. Otherwise a program that moves counted entries to uncounted directories could block it without end.
        """
        with contextlib.closing(walk(base, opening=True)) as entries:
            for entry in entries:
                if self.over:
                    break
                self.files += 1
                self.bytes += entry.stat.st_blocks * 512
                self.too_deep = entry.depth >= MAX_DEPTH
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    """One directory entry: its path relative to the tree, and how to open it without walking again."""

    path: str
    name: str
    parent_fd: int
    stat: os.stat_result
    depth: int


def write(base: Path, parts: Sequence[str], file: AnyFile, owner: tuple[int, int] | None) -> None:
    """Write `file` at `base/parts` and create parent directories; `owner` is (uid, gid) if we are root.

    A link or file at the last part is replaced; an earlier one is refused.
    """
    shown_path = "/".join(parts)
    fd = _enter(base, parts[:-1], shown_path, owner, create=True)
    temporary = f".penstock-{secrets.token_hex(8)}"
    try:
        out = os.open(temporary, _CREATE, 0o600, dir_fd=fd)
        try:
            with os.fdopen(out, "wb") as sink, file.open() as content:
                shutil.copyfileobj(content, sink, _PIECE)
                if sink.tell() != file.size:
                    raise SandboxError(f"{shown_path} has {sink.tell()} bytes instead of {file.size}")
                if owner is not None:
                    os.fchown(sink.fileno(), *owner)
                os.fchmod(sink.fileno(), file.mode & 0o777)
            os.rename(temporary, parts[-1], src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=fd)
            raise
    except IsADirectoryError as error:
        raise PathRefused(shown_path, RefusedReason.SPECIAL) from error
    finally:
        os.close(fd)


def make(base: Path, parts: Sequence[str], owner: tuple[int, int] | None) -> None:
    """Create the directory `base/parts` and its parents. A link or file at any part is refused."""
    os.close(_enter(base, parts, "/".join(parts), owner, create=True))


def link(base: Path, parts: Sequence[str], target: str, owner: tuple[int, int] | None) -> None:
    """Create the symbolic link `base/parts` and its parent directories. `target` is not resolved. A link or file at the last part is
    replaced; an earlier one is refused."""
    shown_path = "/".join(parts)
    fd = _enter(base, parts[:-1], shown_path, owner, create=True)
    temporary = f".penstock-{secrets.token_hex(8)}"
    try:
        os.symlink(target, temporary, dir_fd=fd)
        try:
            if owner is not None:
                os.chown(temporary, *owner, dir_fd=fd, follow_symlinks=False)
            os.rename(temporary, parts[-1], src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=fd)
            raise
    except IsADirectoryError as error:
        raise PathRefused(shown_path, RefusedReason.SPECIAL) from error
    finally:
        os.close(fd)


def make_passable(directory: Path, mode: int = 0o711) -> None:
    """Create a directory with exactly these permission bits, if it is missing. Our umask could close it to the users of sandboxes."""
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return
    directory.chmod(mode)


class Kind(enum.Enum):
    """The entries that `clear` removes."""

    ANY = enum.auto()
    DIRECTORY = enum.auto()
    OTHER = enum.auto()
    """A file, link, socket or device."""


def clear(base: Path, parts: Sequence[str], *, kind: Kind = Kind.ANY) -> None:
    """Remove what is at `base/parts`, with everything below it, if it exists, is of this kind and no link leads there. No process may write
    there at the same time."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                os.close(fd)
                fd = inner
            is_directory = stat.S_ISDIR(os.lstat(parts[-1], dir_fd=fd).st_mode)
            if kind is (Kind.OTHER if is_directory else Kind.DIRECTORY):
                return
            if is_directory:
                shutil.rmtree(parts[-1], dir_fd=fd)
            else:
                os.unlink(parts[-1], dir_fd=fd)
        finally:
            os.close(fd)


def permit(base: Path, parts: Sequence[str], mode: int) -> None:
    """Set the permission bits of the directory `base/parts`, which must exist. A link or file at any part is refused."""
    fd = _enter(base, parts, "/".join(parts), None, create=False)
    try:
        os.fchmod(fd, mode & 0o777)
    finally:
        os.close(fd)


def read(base: Path, parts: Sequence[str], max_bytes: int) -> bytes:
    """The bytes of the regular file `base/parts`, also of one that is closed to us, its owner, or lies in such a directory. `FileNotFoundError`,
    `PathRefused`."""
    shown_path = "/".join(parts)
    with contextlib.ExitStack() as opened:
        fd = opened.enter_context(_opened(None, base, shown_path, _DIRECTORY))
        for part in parts[:-1]:
            fd = opened.enter_context(_opened(fd, part, shown_path, _DIRECTORY))
        fd = opened.enter_context(_opened(fd, parts[-1], shown_path, _READ))
        return _content(fd, shown_path, max_bytes)


def read_at(parent_fd: int, name: str, label: str, max_bytes: int) -> File:
    """One regular file of an open directory, at most `max_bytes` long."""
    fd = _open_file(parent_fd, name, label)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode) & 0o777
        return File(_content(fd, label, max_bytes), mode)
    finally:
        os.close(fd)


def _content(fd: int, label: str, max_bytes: int) -> bytes:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise PathRefused(label, RefusedReason.SPECIAL)
    # Read one byte past the limit instead of trusting the size: the file may grow during the read.
    if status.st_size <= max_bytes:
        with os.fdopen(fd, "rb", closefd=False) as source:
            data = source.read(max_bytes + 1)
        if len(data) <= max_bytes:
            return data
    raise PathRefused(label, RefusedReason.TOO_LARGE)


@contextlib.contextmanager
def _opened(parent_fd: int | None, name: str | Path, label: str, flags: int) -> Iterator[int]:
    """One entry, open for reading inside the block. If it is ours and closed to us, it has more permissions until then."""
    with contextlib.ExitStack() as closing:
        try:
            try:
                fd = os.open(name, flags, dir_fd=parent_fd)
            except PermissionError:
                path_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
                closing.callback(os.close, path_fd)
                path, mode = f"/proc/self/fd/{path_fd}", stat.S_IMODE(os.fstat(path_fd).st_mode)
                os.chmod(path, mode | _ENTER)
                closing.callback(os.chmod, path, mode)
                fd = os.open(path, flags & ~os.O_NOFOLLOW)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise PathRefused(label, _reason(error, parent_fd, name)) from error
        closing.callback(os.close, fd)
        yield fd


def sha256_at(parent_fd: int, name: str, label: str, max_bytes: int) -> bytes:
    """sha256 of one regular file of an open directory, at most `max_bytes` long. Raises like `read_at`."""
    digest = hashlib.sha256()
    for piece in _pieces(parent_fd, name, label, max_bytes):
        digest.update(piece)
    return digest.digest()


def copy_at(parent_fd: int, name: str, label: str, max_bytes: int, target: Path, mode: int) -> StoredFile:
    """Copy one regular file of an open directory, at most `max_bytes` long, to the new file `target`; `mode` is what it has inside. Raises
    like `read_at`, and leaves no file then."""
    try:
        with target.open("xb") as sink:
            for piece in _pieces(parent_fd, name, label, max_bytes):
                sink.write(piece)
            return StoredFile(source=target, size=sink.tell(), mode=mode)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _pieces(parent_fd: int, name: str, label: str, max_bytes: int) -> Iterator[bytes]:
    fd = _open_file(parent_fd, name, label)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PathRefused(label, RefusedReason.SPECIAL)
        left = max_bytes
        with os.fdopen(fd, "rb", closefd=False) as source:
            while piece := source.read(_PIECE):
                left -= len(piece)
                if left < 0:
                    raise PathRefused(label, RefusedReason.TOO_LARGE)
                yield piece
    finally:
        os.close(fd)


def walk(
    base: Path, skip: frozenset[str] = frozenset(), depth: int = MAX_DEPTH, *, opening: bool = False
) -> Generator[TreeEntry, None, None]:
    """Every entry below `base`, directories before their content, sorted by name.

    A directory at `depth`, or one that cannot be opened, is yielded but not entered; `opening`: our own are opened despite their permissions.
    `base` itself can always be opened, and stays open. A directory with a name in `skip` is not yielded at all. An entry's `parent_fd` is open until
    the next entry is requested.
    """
    fd = os.open(base, _DIRECTORY) if os.access(base, os.R_OK | os.X_OK) else _unlocked(None, base)[0]
    try:
        yield from _walk(fd, "", 1, skip, depth, opening)
    finally:
        os.close(fd)


def remove(base: Path) -> None:
    """Delete `base` and everything below, at any depth and with any permissions. No-op if it is gone.

    Directories are moved to the top instead of entered, so neither paths nor recursion grow. No process may
    still write there.
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
        raise fault(error, f"cannot remove {base}: {error}") from error
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
                with contextlib.suppress(OSError):  # most are empty, and moving is slower than removing
                    os.rmdir(child, dir_fd=fd)
                    continue
                os.close(_open_own_directory(fd, child))  # a directory must be writable itself to be moved
                os.rename(child, f"lifted-{secrets.token_hex(8)}", src_dir_fd=fd, dst_dir_fd=top)
            else:
                os.unlink(child, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=top)


def _open_own_directory(parent_fd: int, name: str) -> int:
    """Open a directory that belongs to us although its permissions may forbid it."""
    if os.geteuid() != 0:
        path_fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
        try:
            os.chmod(f"/proc/self/fd/{path_fd}", 0o700)
        finally:
            os.close(path_fd)
    return os.open(name, _DIRECTORY, dir_fd=parent_fd)


def _walk(
    fd: int, prefix: str, level: int, skip: frozenset[str], depth: int, opening: bool
) -> Iterator[TreeEntry]:
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
        yield TreeEntry(path=prefix + name, name=name, parent_fd=fd, stat=status, depth=level)
        if not directory or level >= depth:
            continue
        unreadable = (
            opening
            and status.st_mode & _ENTER != _ENTER
            and not os.access(name, os.R_OK | os.X_OK, dir_fd=fd)
        )
        try:
            inner, mode = _unlocked(fd, name) if unreadable else (os.open(name, _DIRECTORY, dir_fd=fd), None)
        except OSError as error:
            pass_on(error)  # else what lies there would look deleted
            continue  # gone, swapped for something else, or not ours to enter
        try:
            yield from _walk(inner, f"{prefix}{name}/", level + 1, skip, depth, opening)
        finally:
            if mode is not None and stat.S_IMODE(os.fstat(inner).st_mode) == mode | _ENTER:
                os.fchmod(inner, mode)
            os.close(inner)


def _unlocked(parent_fd: int | None, name: str | Path) -> tuple[int, int]:
    """Open a directory for its owner. Returns the descriptor and its former permissions."""
    path_fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    try:
        mode = stat.S_IMODE(os.fstat(path_fd).st_mode)
        os.chmod(f"/proc/self/fd/{path_fd}", mode | _ENTER)
        return os.open(".", _DIRECTORY, dir_fd=path_fd), mode
    finally:
        os.close(path_fd)


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


def _reason(error: OSError, parent_fd: int | None, name: str | Path) -> RefusedReason:
    """Why an entry cannot be opened. An error of this machine says nothing about it, and is raised again."""
    pass_on(error)
    if error.errno in (errno.EACCES, errno.EPERM):
        return RefusedReason.UNREADABLE
    try:
        link = stat.S_ISLNK(os.lstat(name, dir_fd=parent_fd).st_mode)
    except OSError:
        link = False
    return RefusedReason.LINK if link else RefusedReason.SPECIAL
