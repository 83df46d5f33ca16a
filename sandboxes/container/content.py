"""The content of an image's work directory, from the tar archive that an engine exports.

The image's author controls the content. All of it is held in memory and written once per sandbox. So everything is bounded
before it is kept: bytes as they arrive (`ContainerEngine.copied`), entries, bytes of one file and of all files, with hard links counted as the copies
that they become. Only plain tar is read: no compression and no sparse files. So the written data is never larger than the data read.
Nothing is extracted: paths are compared here, and `sandboxes.tree` writes them without following a link.
"""

from __future__ import annotations

import os
import posixpath
import stat
import tarfile
from dataclasses import dataclass, field
from typing import BinaryIO, Self

from sandboxes.base import File, ImageRefused, Limits, SandboxError
from sandboxes.tree import MAX_DEPTH

MAX_ENTRIES = 50_000
MAX_FILE = 256 << 20  # bytes
MAX_BYTES = 1 << 30
_PIECE = 1 << 20
_OF_AN_ENTRY = 4096  # bytes of headers and padding, about
_HEADER = 1 << 17  # bytes of names and extended attributes; tarfile is slow with longer ones
_MEMBERS = (*tarfile.REGULAR_TYPES, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE)
_NAME, _TARGET = 255, 4095  # bytes that Linux accepts


@dataclass(frozen=True, slots=True)
class DirectoryBounds:
    """Limits of a work directory: `entries` with parent directories, `file` bytes in one file, `total` in all."""

    entries: int = MAX_ENTRIES
    file: int = MAX_FILE
    total: int = MAX_BYTES

    @classmethod
    def of(cls, limits: Limits) -> DirectoryBounds:
        """The bounds of a sandbox. A work directory above them would end its first program."""
        total = min(MAX_BYTES, limits.disk_mb << 20)
        return cls(min(MAX_ENTRIES, limits.disk_files), min(MAX_FILE, total), total)

    @property
    def archive(self) -> int:
        """Bytes of the longest archive that can be within them."""
        return self.total + self.entries * _OF_AN_ENTRY


@dataclass(slots=True, kw_only=True)
class DirectoryContent:
    """The content, by path relative to the work directory."""

    files: dict[str, File] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    owners: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(uid, gid) of every entry, "" for the work directory itself."""


def too_large(bounds: DirectoryBounds) -> ImageRefused:
    return _refused(
        f"more than {bounds.total >> 20} MB (sandbox.disk_mb, and {MAX_BYTES >> 20} at most): make it smaller"
    )


def read(archive: BinaryIO, bounds: DirectoryBounds) -> DirectoryContent:
    """Read an uncompressed tar archive, from its beginning. ImageRefused (one sentence) for content that no sandbox accepts; SandboxError for an
    incomplete archive."""
    reader = _Reader(bounds)
    try:
        with tarfile.open(fileobj=archive, mode="r|", tarinfo=_Header) as tar:
            for entry in tar:
                reader.take(tar, entry)
            end = tar.offset
    except (tarfile.TarError, EOFError, RecursionError, ValueError, OverflowError) as error:
        if isinstance(error, ImageRefused):
            raise
        detail = " ".join(str(error).split())[:200]
        raise SandboxError(f"the archive of an image's work directory cannot be read: {detail}") from error
    archive.seek(end)
    if archive.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile treats an invalid header as the end
        raise SandboxError(f"the archive of an image's work directory is damaged behind byte {end}")
    return reader.content


def _refused(what: str) -> ImageRefused:
    return ImageRefused(f"environment/Dockerfile: the work directory of its image holds {what}")


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type not in _MEMBERS and not 0 <= found.size <= _HEADER:
            raise _refused(f"what has a header of {found.size} bytes: {found.name[:200]!r}")
        return found


class _Reader:
    def __init__(self, bounds: DirectoryBounds) -> None:
        self.content = DirectoryContent()
        self._bounds = bounds
        self._left = bounds.total
        self._is_directory: dict[str, bool] = {}

    def take(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        path = posixpath.normpath(entry.name)
        if path == ".":
            self.content.owners[""] = _owner(entry)
            return
        self._enter(path, directory=entry.isdir())
        self.content.owners[path] = _owner(entry)
        if entry.issparse():
            raise _refused(f"a sparse file: {path!r}")
        if entry.isreg():
            self._account(path, entry.size)
            self.content.files[path] = File(_body(archive, entry), stat.S_IMODE(entry.mode) & 0o777)
        elif entry.issym():
            self.content.links[path] = _target(path, entry.linkname)
        elif entry.isdir():
            self.content.directories.append(path)
        elif entry.islnk():
            linked = self.content.files.get(posixpath.normpath(entry.linkname))
            if linked is None:
                raise _refused(f"a hard link that leads out of it: {path!r}")
            self._account(path, len(linked.data))
            self.content.files[path] = linked
        else:
            raise _refused(f"neither a file nor a directory nor a link: {path!r}")

    def _enter(self, path: str, *, directory: bool) -> None:
        """Enter a path: no name occurs twice, and no path is below a file or a link."""
        parts = path.split("/")
        if path.startswith("/") or parts[0] == ".." or len(parts) > MAX_DEPTH or not _takes(parts):
            raise _refused(f"a file without a plain name, or too deep: {path[:200]!r}")
        for end in range(1, len(parts)):
            if not self._is_directory.setdefault("/".join(parts[:end]), True):
                raise _refused(f"{path!r} below a path that is not a directory")
        if path in self._is_directory and not (directory and self._is_directory[path]):
            raise _refused(f"{path!r} twice")
        self._is_directory[path] = directory
        if len(self._is_directory) > self._bounds.entries:
            raise _refused(f"more than {self._bounds.entries} files and directories: make them fewer")

    def _account(self, path: str, size: int) -> None:
        if not 0 <= size <= self._bounds.file:
            raise _refused(f"a file of more than {self._bounds.file >> 20} MB: {path!r}")
        self._left -= size
        if self._left < 0:
            raise too_large(self._bounds)


def _owner(entry: tarfile.TarInfo) -> tuple[int, int]:
    """Its owner; an impossible number counts as root's."""
    known = 0 <= entry.uid < 1 << 31 and 0 <= entry.gid < 1 << 31
    return (entry.uid, entry.gid) if known else (0, 0)


def _takes(parts: list[str]) -> bool:
    try:
        return all("\0" not in part and len(os.fsencode(part)) <= _NAME for part in parts)
    except UnicodeEncodeError:
        return False


def _target(path: str, target: str) -> str:
    try:
        valid = target and "\0" not in target and len(os.fsencode(target)) <= _TARGET
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise _refused(f"a link that leads nowhere: {path!r}")
    return target


def _body(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    """The bytes of an entry, read in pieces: a size that the archive only claims costs nothing."""
    source = archive.extractfile(entry)
    assert source is not None
    body = bytearray()
    while chunk := source.read(min(_PIECE, entry.size - len(body))):
        body += chunk
    if len(body) != entry.size:
        raise SandboxError(
            f"the archive of an image's work directory ends within {entry.name!r}, after {len(body)} of {entry.size} bytes"
        )
    return bytes(body)
