"""The difference between an image's work directory and what a sandbox made of it, read from the sandbox's own layer alone.

The layer (the upper directory of overlayfs) holds every file that was written or changed, and for each deleted one a character device 0/0, a
*whiteout*. A directory that replaced another one is *opaque*: nothing of the image shows through it. A file that was changed and changed back
is in the layer too, so files are compared by their bytes. What the layer does not hold is unchanged, and is not read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from sandboxes import artifacts, tree
from sandboxes.artifacts import PlacedEntry, PlacedKind
from sandboxes.base import WORK, ArtifactLimits, Artifacts

_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque", "user.fuseoverlayfs.opaque")
_FUSE_OPAQUE, _FUSE_WHITEOUT = ".wh..wh..opq", ".wh."
_PIECE = 1 << 20


class _Image:
    """The image's work directory, without the paths in `absent`."""

    def __init__(self, lower: Path, absent: Collection[str]) -> None:
        self._lower = lower
        self._absent = tuple(absent)

    def entry(self, path: str) -> PlacedEntry | None:
        """The image's entry at a path, if it has one there."""
        if self._left_out(path):
            return None
        try:
            found = os.lstat(self._lower / path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return self._placed(self._lower / path, found)

    def below(self, path: str) -> Iterator[tuple[str, PlacedEntry]]:
        """The image's entries below one of its directories, "" for all."""
        for entry in tree.walk(self._lower / path):
            inner = f"{path}/{entry.path}".lstrip("/")
            if not self._left_out(inner):
                yield inner, self._placed(self._lower / inner, entry.stat)

    def _left_out(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self._absent)

    @staticmethod
    def _placed(file: Path, found: os.stat_result) -> PlacedEntry:
        mode = stat.S_IMODE(found.st_mode) & 0o777
        if stat.S_ISDIR(found.st_mode):
            return PlacedEntry(kind=PlacedKind.DIRECTORY, mode=mode)
        if stat.S_ISLNK(found.st_mode):
            return PlacedEntry.link(os.readlink(file))
        return PlacedEntry(kind=PlacedKind.FILE, size=found.st_size, sha256=_sha256(file), mode=mode)


def changed(
    upper: Path,
    lower: Path,
    placed: Mapping[str, PlacedEntry],
    absent: Collection[str],
    limits: ArtifactLimits,
    *,
    called: str = WORK,
    spool: Path | None = None,
    at: str = "",
    fuse: bool = False,
) -> Artifacts:
    """Compare the layer at `upper` with the image's work directory `lower`, or with its directory `at`, without the paths in `absent`, and with what
    the caller `placed` over it. `fuse`: the layer is that of fuse-overlayfs, where an empty file `.wh.NAME` can be a whiteout; in the kernel's it
    is a file of that name.

    No process may write at the same time.
    """
    image = _Image(lower, absent)
    known: dict[str, PlacedEntry] = {}
    hidden: set[str] = set()
    for entry in tree.walk(upper, limits.skip, limits.depth):
        path, mode = entry.path, entry.stat.st_mode
        if fuse and entry.name.startswith(_FUSE_WHITEOUT) and stat.S_ISREG(mode) and not entry.stat.st_size:
            hidden.add(path)
            if entry.name != _FUSE_OPAQUE:
                path = path[: -len(entry.name)] + entry.name.removeprefix(_FUSE_WHITEOUT)
                known |= _with_content(image, path)
        elif stat.S_ISCHR(mode) and entry.stat.st_rdev == 0:
            hidden.add(path)
            known |= _with_content(image, path)
        elif (earlier := image.entry(path)) is not None:
            known[path] = earlier
            if earlier.directory and (not stat.S_ISDIR(mode) or _opaque(entry, fuse)):
                known |= dict(image.below(path))
    return artifacts.changed(
        upper,
        {**known, **placed},
        limits,
        called=called,
        hidden=hidden,
        spool=spool,
        at=at,
        leads=artifacts.stays_in_image,
    )


def everything(lower: Path, absent: Collection[str]) -> Iterator[tuple[str, PlacedEntry]]:
    """All that the image's work directory `lower` has, without the paths in `absent`. Reads every file."""
    return _Image(lower, absent).below("")


def _with_content(image: _Image, path: str) -> dict[str, PlacedEntry]:
    earlier = image.entry(path)
    if earlier is None:
        return {}
    return {path: earlier, **(dict(image.below(path)) if earlier.directory else {})}


def _opaque(entry: tree.TreeEntry, fuse: bool) -> bool:
    path = f"/proc/self/fd/{entry.parent_fd}/{entry.name}"
    for name in _OPAQUE:
        try:
            if os.getxattr(path, name, follow_symlinks=False) in (b"y", b"x"):
                return True
        except OSError:
            continue
    if not fuse:
        return False
    try:
        os.lstat(f"{path}/{_FUSE_OPAQUE}")
    except OSError:
        return False
    return True


def _sha256(file: Path) -> bytes:
    hasher = hashlib.sha256()
    with file.open("rb") as source:
        while data := source.read(_PIECE):
            hasher.update(data)
    return hasher.digest()
