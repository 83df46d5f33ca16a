"""System V shared memory of PostgreSQL servers that were killed: one segment of 56 bytes each, which outlives the processes and the data directory.

PostgreSQL's own next start removes it. If the directory is never started again, or deleted, they stay. So each start leaves a record of its data
directory at a place of this user, and removes the segments of recorded directories that no process is attached to. A segment says itself whose it
is: its header has device and inode of the data directory. All other shared memory of a server is a file below its data directory
(`dynamic_shared_memory_type = mmap`).
"""

import ctypes
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from orchestrator.deploy.embedded.identity import write_atomically
from sandboxes.base import SandboxError
from sandboxes.owner import prepare_root

_SEGMENTS: Final = Path("/proc/sysvipc/shm")
_MAGIC: Final = 679834894  # PGShmemMagic; the last two fields of the header are dev_t and ino_t
_REMOVE, _READ_ONLY = 0, 0o10000  # IPC_RMID, SHM_RDONLY
_MAX_BYTES: Final = 4096  # the header alone; a server whose whole memory is one segment is not ours


class _Started(msgspec.Struct, frozen=True):
    """A data directory in which a server was started."""

    pgdata: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    shmid: int
    attached: int
    device: int
    inode: int


def root() -> Path:
    """Where this user's records are."""
    return Path(tempfile.gettempdir()) / f"penstock-clusters-{os.geteuid()}"


def record_start(pgdata: Path) -> None:
    """Record that a server is about to use `pgdata`. ValueError if another user holds the place."""
    _prepare()
    found = pgdata.stat()
    record = _Started(str(pgdata), found.st_dev, found.st_ino)
    write_atomically(root() / f"{found.st_dev}-{found.st_ino}.json", msgspec.json.encode(record))


def remove_segments(pgdata: Path) -> int:
    """Remove what a dead server of this directory left, and its record. Returns the number of segments."""
    found = pgdata.stat()
    (root() / f"{found.st_dev}-{found.st_ino}.json").unlink(missing_ok=True)
    return _remove({(found.st_dev, found.st_ino)})


def remove_orphans() -> int:
    """Remove the segments of recorded directories that no process uses, and the records of directories that are gone. Returns the number of
    segments. ValueError if another user holds the place."""
    _prepare()
    places: set[tuple[int, int]] = set()
    gone: list[Path] = []
    for path in root().glob("*.json"):
        try:
            started = msgspec.json.decode(path.read_bytes(), type=_Started)
        except (FileNotFoundError, msgspec.DecodeError):
            gone.append(path)
            continue
        places.add((started.device, started.inode))
        if not _is(Path(started.pgdata), started):
            gone.append(path)
    removed = _remove(places)
    for path in gone:
        path.unlink(missing_ok=True)
    return removed


def _prepare() -> None:
    try:
        prepare_root(root())
    except SandboxError as error:
        raise ValueError(str(error)) from error


def _is(pgdata: Path, started: _Started) -> bool:
    try:
        found = pgdata.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (started.device, started.inode)


def _remove(places: set[tuple[int, int]]) -> int:
    removed = 0
    for segment in _segments() if places else ():
        # A server, or a process that it left, is attached for as long as it lives.
        if segment.attached == 0 and (segment.device, segment.inode) in places:
            removed += _libc().shmctl(segment.shmid, _REMOVE, None) == 0
    return removed


def _segments() -> Iterator[_Segment]:
    """Those of PostgreSQL servers that this user may read."""
    try:
        lines = _SEGMENTS.read_text().splitlines()
    except OSError:  # no System V shared memory here
        return
    names = lines[0].split()
    for line in lines[1:]:
        row = dict(zip(names, line.split(), strict=False))
        if int(row["size"]) > _MAX_BYTES or int(row["nattch"]) or _alive(int(row["cpid"])):
            continue
        shmid, size = int(row["shmid"]), int(row["size"])
        header = _header(shmid, size)
        if header is not None:
            yield _Segment(shmid=shmid, attached=_attached(shmid), device=header[0], inode=header[1])


def _alive(pid: int) -> bool:
    """A server that has just made its segment is not attached yet. A number that another process has by now only delays the removal."""
    return Path(f"/proc/{pid}").exists()


def _header(shmid: int, size: int) -> tuple[int, int] | None:
    """(device, inode) of the data directory, from the header of a PostgreSQL server's segment."""
    libc = _libc()
    address = libc.shmat(shmid, None, _READ_ONLY)
    if size < 32 or address in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        raw = ctypes.string_at(address, size)
    finally:
        libc.shmdt(address)
    if struct.unpack_from("=i", raw)[0] != _MAGIC:
        return None
    device, inode = struct.unpack_from("=QQ", raw, size - 16)
    return device, inode


def _attached(shmid: int) -> int:
    for line in _SEGMENTS.read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1]) == shmid:
            return int(fields[6])
    return 1  # gone: nothing to remove


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    libc.shmdt.argtypes = [ctypes.c_void_p]
    libc.shmctl.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    return libc
