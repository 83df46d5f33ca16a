"""An image of the store as an OCI directory or archive, with one uncompressed layer: for builds upon it, and for other machines."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sandboxes import tree
from sandboxes.base import SandboxError
from sandboxes.images.owners import OF_ROOT, Ids
from sandboxes.images.store import Image

_LAYER, _CONFIG = "application/vnd.oci.image.layer.v1.tar", "application/vnd.oci.image.config.v1+json"
_MANIFEST, _INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"

_PLACE = ".penstock-export-"

log = logging.getLogger(__name__)


def write_directory(image: Image, place: Path, *, volumes: bool = True) -> None:
    """Write the image to the empty directory `place`. The same image gives the same bytes on every machine. `volumes`: also its VOLUME; without, a
    build upon it keeps what it writes there."""
    blobs = place / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = _layer(image, blobs)
    settings: dict[str, Any] = {
        "Env": [f"{name}={value}" for name, value in image.env.items()],
        "WorkingDir": image.work,
    }
    if image.user:
        settings["User"] = image.user
    if volumes and image.volumes:
        settings["Volumes"] = {path: {} for path in image.volumes}
    config = {
        "architecture": image.architecture,
        "os": "linux",
        "config": settings,
        "history": [{"created_by": "penstock images"}],  # buildah wants one entry per layer
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    described = _blob(blobs, config, _CONFIG)
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": [layer]}
    listed = _blob(blobs, manifest, _MANIFEST) | {
        "annotations": {"org.opencontainers.image.ref.name": "image"}
    }
    (place / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    (place / "index.json").write_text(
        json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [listed]})
    )


def write_archive(image: Image, file: Path) -> None:
    """Write the image to a new tar archive, for `penstock images import` elsewhere. The archive appears whole or not at all; what killed exports left
    in its directory is removed. FileExistsError, and OSError of its disk."""
    if os.path.lexists(file):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))
    with _place(file.parent) as place:
        write_directory(image, place / "image")
        with (place / "archive").open("xb") as sink:
            with tarfile.open(fileobj=sink, mode="w") as archive:
                archive.add(place / "image", arcname=".")
            sink.flush()
            os.fsync(sink.fileno())
        try:
            os.link(place / "archive", file)  # it replaces nothing, which a rename would
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            (place / "archive").rename(file)


@contextmanager
def _place(parent: Path) -> Iterator[Path]:
    """A directory in `parent`, locked by this process and gone when the block ends."""
    for left in parent.glob(f"{_PLACE}*"):
        _sweep(left)
    fd = None
    while fd is None:  # again if another process removed it before it was locked
        place = parent / f"{_PLACE}{secrets.token_hex(8)}"
        place.mkdir(mode=0o700)
        fd = _held(place, fcntl.LOCK_EX)
    try:
        yield place
    finally:
        try:
            tree.remove(place)
        finally:
            os.close(fd)


def _held(place: Path, kind: int) -> int | None:
    """The open directory with its lock; None if it is gone, or locked by another process."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, kind)
        if place.lstat().st_ino == os.fstat(fd).st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # a file system without locks: only its maker goes on
        if not kind & fcntl.LOCK_NB:
            return fd
    os.close(fd)
    return None


def _sweep(left: Path) -> None:
    """Remove what a dead export of this user left. The error of one that cannot be removed is logged, and the export goes on."""
    try:
        status = left.lstat()
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
            return
        if (fd := _held(left, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
            return
        try:
            tree.remove(left)
        finally:
            os.close(fd)
    except (OSError, SandboxError) as error:
        log.warning("what an export left cannot be removed: %s", error)


def _blob(blobs: Path, content: object, kind: str) -> dict[str, Any]:
    data = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


class _HashingWriter:
    """A file that is hashed as it is written."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self.hasher = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.hasher.update(data)
        self.size += len(data)
        return self._sink.write(data)


def _layer(image: Image, blobs: Path) -> dict[str, Any]:
    owners = image.owners if image.kept_owners else OF_ROOT
    temporary = blobs / "layer"
    with temporary.open("wb") as sink:
        hashed = _HashingWriter(sink)
        with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            seen: dict[int, str] = {}
            for entry in tree.walk(image.root):
                _add(archive.addfile, entry, seen, owners.at(entry.path, image.work.lstrip("/")))
    digest = hashed.hasher.hexdigest()
    temporary.rename(blobs / digest)
    return {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": hashed.size}


def _add(add: Callable[..., None], entry: tree.TreeEntry, seen: dict[int, str], owner: Ids) -> None:
    info = tarfile.TarInfo(entry.path)
    info.uid, info.gid = owner
    info.mode = stat.S_IMODE(entry.stat.st_mode)
    if stat.S_ISDIR(entry.stat.st_mode):
        info.type = tarfile.DIRTYPE
        add(info)
    elif stat.S_ISLNK(entry.stat.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(entry.name, dir_fd=entry.parent_fd)
        add(info)
    elif entry.stat.st_nlink > 1 and entry.stat.st_ino in seen:
        info.type, info.linkname = tarfile.LNKTYPE, seen[entry.stat.st_ino]
        add(info)
    else:
        seen[entry.stat.st_ino] = entry.path
        info.size = entry.stat.st_size
        with open(
            os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=entry.parent_fd), "rb"
        ) as body:
            add(info, body)
