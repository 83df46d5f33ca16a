"""One layer of an OCI image: a tar archive of changes, with whiteouts for what it removes.

The archive is read as a stream and bounded before it is kept: headers by `_Header`, everything else by the `Unpacker`.
"""

from __future__ import annotations

import tarfile
from typing import BinaryIO, Self

from sandboxes.base import ImageRefused
from sandboxes.images.unpack import Unpacker, plain

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_HEADER = 1 << 20  # bytes of names and extended attributes
_MEMBERS = (*tarfile.REGULAR_TYPES, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE)
_DROPPED = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type not in (*_MEMBERS, *_DROPPED) and not 0 <= found.size <= _HEADER:
            raise ImageRefused(f"the image holds a header of {found.size} bytes: {found.name[:200]!r}")
        return found


def apply(layer: BinaryIO, target: Unpacker) -> None:
    """Apply a layer, an uncompressed tar archive, to what earlier layers made. ImageRefused for anything that is not a layer."""
    added: set[tuple[str, ...]] = set()
    try:
        with tarfile.open(fileobj=layer, mode="r|", tarinfo=_Header) as archive:
            for entry in archive:
                _take(archive, entry, target, added)
                archive.members = []  # type: ignore[attr-defined]  # it would keep them all
    except (tarfile.TarError, EOFError, RecursionError, OverflowError) as error:
        raise ImageRefused(
            f"a layer of the image cannot be read: {' '.join(str(error).split())[:200]}"
        ) from error


def _take(
    archive: tarfile.TarFile, entry: tarfile.TarInfo, target: Unpacker, added: set[tuple[str, ...]]
) -> None:
    parts = plain(entry.name)
    name = parts[-1] if parts else ""
    if name.startswith(_WHITEOUT):
        target.count()
    if name == _OPAQUE:
        target.empty(parts[:-1], added.__contains__)
        return
    if name.startswith(_WHITEOUT + _WHITEOUT):  # of a storage driver, such as aufs
        return
    if name.startswith(_WHITEOUT):
        removed = plain("/".join((*parts[:-1], name.removeprefix(_WHITEOUT))))
        if len(removed) != len(parts):
            raise ImageRefused(f"the image removes something without a name: {entry.name[:200]!r}")
        target.remove(removed)
        return
    if entry.type in _DROPPED:
        target.count()
        target.remove(parts)
        return
    if entry.issparse():
        raise ImageRefused(f"the image holds a sparse file: {entry.name[:200]!r}")
    for end in range(len(parts)):  # parents too: an opaque marker that follows must not remove them
        added.add(parts[: end + 1])
    owner = (max(entry.uid, 0), max(entry.gid, 0))
    if entry.isdir():
        target.directory(parts, entry.mode, owner)
    elif entry.issym():
        target.link(parts, entry.linkname, owner)
    elif entry.islnk():
        target.hard_link(parts, plain(entry.linkname.lstrip("/")))
    elif entry.isreg():
        body = archive.extractfile(entry)
        assert body is not None
        target.file(parts, entry.mode, entry.size, body, owner)  # type: ignore[arg-type]
    else:
        raise ImageRefused(f"the image holds an entry of an unknown kind: {entry.name[:200]!r}")
