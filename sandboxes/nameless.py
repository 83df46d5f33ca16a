"""Files without a name that living processes hold, open or mapped: deleted ones, and those that never had a name (O_TMPFILE, memfd_create). They take
space that no walk through directories finds, and the kernel frees it only when the last process has let go.

The source is /proc. It does not show what a process hides from all but root of this machine (`PR_SET_DUMPABLE`), nor descriptors on their way through
a socket. A reading costs up to 10 µs for each descriptor. This module also measures programs under test, in their verifier's sandbox
(`orchestrator.tasks.held`): it uses only the standard library, for Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

MAX_LOOKS = 50_000
"""Descriptors, and KiB of mappings in /proc, that one reading looks at: half a second. Processes that have more count as over every limit."""
MAX_NAMES = 200_000
"""Descriptors of threads whose numbers alone one reading lists, where the kernel does not compare threads (`kcmp`): 0.15 s."""
TOO_MANY = 1 << 62
_DELETED = " (deleted)"
_DELETED_LINE = _DELETED.encode() + b"\n"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_SHARED_MEMORY = "/dev/shm"
_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine, -1)
_KCMP_FILES = 2
_CLOSED_ON_EXEC, _HUGE_PAGES = 1, 4  # flags of memfd_create

_libc = ctypes.CDLL(None, use_errno=True)
_internal: set[int] = set()


class Held:
    """The nameless files of some processes, each once: allocated bytes by device and inode. `mapped`: of a file that is only mapped, and that we
    may not look at, the length of its mapping, if it is shared and can be written: others may be of an image or this machine, or have another name.
    `shm_bytes`: all that lies in the /dev/shm of the processes, if it is their own.

    `places`: directories where the processes may write. What is on their devices counts as on a disk, even if that is memory.
    """

    def __init__(self, pids: Sequence[int], places: Iterable[str | os.PathLike[str]]) -> None:
        """Read. OSError if a place is gone, or if we have too few descriptors."""
        self.shm_bytes = 0
        self._own_shm = -1
        self._memory = internal_devices().copy()
        for pid in pids:
            with _unless_gone():
                self._look_into_shared_memory(f"/proc/{pid}/root{_SHARED_MEMORY}")
                break
        self._memory -= {os.stat(place).st_dev for place in places}
        self.files: dict[tuple[int, int], int] = {}
        self.mapped: dict[tuple[int, int], int] = {}
        self._left = MAX_LOOKS
        self._names_left = MAX_NAMES
        for pid in pids:
            if not self.complete:
                break
            threads = _threads(pid)
            self._read_threads(threads)
            for thread in threads:  # they share their memory; a first thread that has ended shows none
                with _unless_gone():
                    if self._read_mappings(thread):
                        break

    def on_disk(self, ignored: Sequence[int] = ()) -> tuple[int, int]:
        """(bytes, number) of those on a disk; the number is `TOO_MANY` if there is too much to look at. `ignored`: our descriptors of files that do
        not count."""
        # On overlayfs, /proc names another device for a mapping than for a descriptor.
        opened = {inode for _, inode in self.files}
        found = {key: size for key, size in self.mapped.items() if key[1] not in opened}
        found.update(self.files)
        for fd in ignored:
            with contextlib.suppress(OSError):  # it is closed
                status = os.fstat(fd)
                found.pop((status.st_dev, status.st_ino), None)
        sizes = [size for (device, _), size in found.items() if device not in self._memory]
        return sum(sizes), len(sizes) if self.complete else TOO_MANY

    def in_memory(self) -> int:
        """Bytes of those in memory that are open, and of everything in the processes' own /dev/shm. Mapped parts are in `resident` sizes, too."""
        open_files = self._memory - {self._own_shm}
        return self.shm_bytes + sum(size for (device, _), size in self.files.items() if device in open_files)

    def _look_into_shared_memory(self, path: str) -> None:
        device, used = os.lstat(path).st_dev, os.statvfs(path)
        if not os.path.exists(_SHARED_MEMORY) or device != os.stat(_SHARED_MEMORY).st_dev:
            self._own_shm = device
            self.shm_bytes = max(0, used.f_blocks - used.f_bfree) * used.f_frsize
        self._memory.add(device)

    @property
    def complete(self) -> bool:
        return self._left >= 0

    def _read_threads(self, threads: Sequence[int]) -> None:
        """Read the descriptors of the first thread that has some, and of the others what is not the same. Where `kcmp` is refused, those are the
        numbers that the first does not have: a thread's own table is rare, and our filter of system calls forbids it (`seccomp`)."""
        first = 0
        numbers: frozenset[str] = frozenset()
        for thread in threads:
            order = _compare_descriptors(first, thread) if first else 1
            # It has ended since, and compares with none.
            if first and order > 0 and not _has_descriptors(first):
                first, order = thread, -1
            if order == 0 or not self.complete or (order < 0 and self._names_left < 0):
                continue
            with _unless_gone():
                found = self._read_descriptors(thread, numbers if order < 0 else frozenset())
                if not first and found:
                    first, numbers = thread, found

    def _read_descriptors(self, pid: int, known: frozenset[str]) -> frozenset[str]:
        """All its numbers; those in `known` are neither looked at nor counted."""
        directory = os.open(f"/proc/{pid}/fd", _DIRECTORY)
        try:
            found = frozenset(os.listdir(directory))
            names = found - known
            self._left -= len(names)
            self._names_left -= len(found) + 16 if known else 0  # an empty list takes time, too
            for name in names if self.complete else ():
                try:
                    deleted = os.readlink(name, dir_fd=directory).endswith(_DELETED)
                except OSError as error:
                    deleted = error.errno == errno.ENAMETOOLONG
                if deleted:  # reading the link takes half the time of `stat`
                    with contextlib.suppress(OSError):
                        self._note(os.stat(name, dir_fd=directory))
            return found
        finally:
            os.close(directory)

    def _read_mappings(self, pid: int) -> bool:
        """Whether the process shows its memory."""
        with open(f"/proc/{pid}/maps", "rb") as file:
            text = file.read()
        self._left -= len(text) >> 10
        known: set[tuple[int, int]] = set()
        for line in text.splitlines(keepends=True) if _DELETED_LINE in text and self.complete else ():
            if not line.endswith(_DELETED_LINE):
                continue
            area, rights, offset, device, inode = line.split(None, 5)[:5]
            key = os.makedev(*(int(part, 16) for part in device.split(b":"))), int(inode)
            if key in known or key in self.files or key[0] in internal_devices():
                continue
            self._left -= 1
            start, end = (int(edge, 16) for edge in area.split(b"-"))
            try:
                self._note(os.stat(f"/proc/{pid}/map_files/{start:x}-{end:x}"))
                known.add(key)
            except PermissionError:
                if rights.startswith(b"rw") and rights.endswith(b"s"):
                    self.mapped[key] = max(self.mapped.get(key, 0), int(offset, 16) + end - start)
            except FileNotFoundError:  # no longer mapped
                continue
        return bool(text)

    def _note(self, status: os.stat_result) -> None:
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
            self.files[status.st_dev, status.st_ino] = status.st_blocks * 512


def internal_devices() -> set[int]:
    """The devices of the kernel's own memory file systems: of `memfd_create`, shared anonymous memory and huge pages. OSError if we have too few
    descriptors."""
    for flags in () if _internal or not hasattr(os, "memfd_create") else (0, _HUGE_PAGES):
        with _unless_gone():  # there may be no huge pages
            fd = os.memfd_create("device", flags | _CLOSED_ON_EXEC)
            _internal.add(os.fstat(fd).st_dev)
            os.close(fd)
    return _internal


def _threads(pid: int) -> list[int]:
    names: list[str] = []
    with _unless_gone():
        names = os.listdir(f"/proc/{pid}/task")
    return [int(name) for name in names]


def _has_descriptors(thread: int) -> bool:
    numbers: list[str] = []
    with _unless_gone():
        numbers = os.listdir(f"/proc/{thread}/fd")
    return bool(numbers)


def _compare_descriptors(first: int, thread: int) -> int:
    """0 if two threads share their descriptors, as usual; 1 or more if each has its own; -1 if the kernel does not say."""
    order: int = _libc.syscall(_KCMP, first, thread, _KCMP_FILES, 0, 0)
    return order


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Suppress every OSError that does not come from a lack of ours: the process is gone, or hides what it has."""
    try:
        yield
    except OSError as error:
        if error.errno in _EXHAUSTED:
            raise
