"""The images of a machine: read-only root file systems by the digest of their content.

    <directory>/images/<digest>/root       the file system; ../image.json describes it
    <directory>/images/<digest>/owners.json the owners that its author gave its files
    <directory>/images/<digest>/used       locked (shared) by every process that has a sandbox on it
    <directory>/names/<name>               the digest that a name stands for
    <directory>/unfinished/<random>/       what an import is writing, and what is being removed; locked by its process

An image appears whole, by one rename, or not at all. Two processes that import the same content write it twice, and the second finds the first one's.
What a killed import left is removed by the next one. All of it belongs to one user.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sandboxes import tree
from sandboxes.base import ImageRefused, SandboxError
from sandboxes.disk_full import storing
from sandboxes.images import adapt, caged, oci, rootfs
from sandboxes.images.architecture import machine
from sandboxes.images.oci import Description
from sandboxes.images.owners import FILE as OWNERS
from sandboxes.images.owners import Owners
from sandboxes.images.unpack import Bounds, Unpacker
from sandboxes.machine import pass_on

NAME = re.compile(r"(?=.{1,200}\Z)[a-z0-9][a-z0-9._/@:-]*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")
"""The name of an image, in lower case, with its tag, which may have capital letters: `texlive/texlive:TL2023-historic`."""
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{12,64})")
_WHOLE = re.compile(r"[0-9a-f]{64}")
_LOCK, _ABOUT, _ROOT = "used", "image.json", "root"
log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


class UnknownImage(SandboxError):
    """Signals that the store has no image of that digest or name. One sentence says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of the store. `digest`: 64 hexadecimal digits. `work`: its work directory. `env`: its variables. `user`: USER as its author wrote it.
    `volumes`: paths of VOLUME. `source`: where it comes from; `substitutes`: name in FROM → the name that stood for it when it was built. `created`:
    Unix seconds."""

    digest: str
    root: Path
    work: str
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    architecture: str = ""
    files: int = 0
    bytes: int = 0
    source: str = ""
    substitutes: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    volumes: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        return f"sha256:{self.digest}"

    @property
    def kept_owners(self) -> bool:
        """Whether it has the owners of its files."""
        return (self.root.parent / OWNERS).is_file()

    @property
    def owners(self) -> Owners:
        """The owners that its author gave its files. SandboxError for an image of an earlier version, which did not keep them."""
        try:
            return Owners.read(self.root.parent / OWNERS)
        except (OSError, ValueError, KeyError, TypeError) as error:
            pass_on(error)
            raise SandboxError(
                f"the image {self.digest[:12]} has no owners of its files: import or build it again"
            ) from error


@dataclass(frozen=True, slots=True)
class Pruned:
    """The digests of removed images, their bytes, and how many were left because a sandbox uses them."""

    removed: tuple[str, ...]
    bytes: int
    in_use: int


class ImageStore:
    """Images below `directory`, which is made when the first one arrives."""

    def __init__(self, directory: Path, bounds: Bounds | None = None) -> None:
        self.directory = directory
        self._bounds = bounds or Bounds()

    def add(self, source: Path, *, name: str = "") -> Image:
        """Import an OCI archive or directory, or the directory of a root file system, and let `name` stand for it.

        ImageRefused, one sentence, for content that is not accepted; SandboxFull if the disk is full. Nothing is left after either.
        """

        def write(target: Unpacker) -> Description:
            if oci.is_oci(source):
                return oci.unpack(source, target)
            rootfs.copy(source, target)
            return Description()

        if not source.exists():
            raise ImageRefused(f"{source} does not exist")
        return self.write(write, source=str(source), name=name)

    def write(
        self,
        unpack: Callable[[Unpacker], Description],
        *,
        source: str,
        name: str = "",
        substitutes: Mapping[str, str] | None = None,
        volumes: Sequence[str] = (),
    ) -> Image:
        """Store the file system that `unpack` writes. `volumes`: paths of VOLUME besides its own. Errors are those of `add`."""
        if name:
            check_name(name)
        with storing(self.directory), self.place() as place:
            image = self._unpacked(place, unpack, source, substitutes or {}, volumes)
            image = self._commit(place, image)
            if name:
                self.name(name, image)
            return image

    def _unpacked(
        self,
        place: Path,
        unpack: Callable[[Unpacker], Description],
        source: str,
        substitutes: Mapping[str, str],
        volumes: Sequence[str],
    ) -> Image:
        root = place / _ROOT
        root.mkdir(mode=0o700)
        target = Unpacker(root, self._bounds)
        try:
            found = unpack(target)
            work = adapt.work_directory(found.work)
            adapt.adapt(target, work)
            declared = tuple(sorted({*found.volumes, *volumes}))
            known = [
                work,
                found.env,
                found.user,
                machine(),
                dict(substitutes),
                *([declared] if declared else []),
            ]
            settings = json.dumps(known, sort_keys=True).encode()
            summary = target.finish(tuple(work.strip("/").split("/")), settings)
        finally:
            target.close()
        (place / OWNERS).write_text(summary.owners.text(), encoding="utf-8")
        return Image(
            digest=summary.digest,
            root=root,
            work=work,
            env=found.env,
            user=found.user,
            architecture=machine(),
            files=summary.files,
            bytes=summary.bytes,
            source=source,
            substitutes=substitutes,
            created=time.time(),
            volumes=declared,
        )

    def _commit(self, place: Path, image: Image) -> Image:
        final = self._images / image.digest
        about = {key: value for key, value in asdict(image).items() if key not in ("digest", "root")}
        if not image.volumes:  # earlier versions do not know the key
            del about["volumes"]
        (place / _ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
        (place / _LOCK).touch()
        fd = os.open(place, os.O_RDONLY)
        try:
            _libc.syncfs(fd)
        finally:
            os.close(fd)
        try:
            place.rename(final)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        return self._read(image.digest)

    def name(self, name: str, image: Image) -> None:
        """Let `name` stand for `image` from now on."""
        check_name(name)
        file = self.directory / "names" / name.replace("/", "%2f")
        temporary = self.directory / "unfinished" / f"{secrets.token_hex(8)}.name"
        temporary.write_text(image.digest, encoding="ascii")
        temporary.rename(file)

    def find(self, reference: str) -> Image:
        """The image of a digest (`sha256:…`, or at least 12 of its digits) or a name. UnknownImage if it is not here."""
        file = self.directory / "names" / reference.replace("/", "%2f")
        if NAME.fullmatch(reference) and file.is_file():
            return self._read(file.read_text(encoding="ascii").strip())
        match = _DIGEST.fullmatch(reference)
        found = [digest for digest in self._digests() if match and digest.startswith(match[1])]
        if len(found) > 1:
            raise UnknownImage(
                f"{reference} fits {len(found)} images of {self.directory}: give more of its digits"
            )
        if not found:
            raise UnknownImage(
                f"the image {reference} is not in {self.directory}: `penstock images list` shows what is, `penstock images import` and"
                " `penstock images build` add to it"
            )
        return self._read(found[0])

    def all(self) -> list[tuple[Image, tuple[str, ...]]]:
        """Every image with its names, the newest first."""
        names: dict[str, list[str]] = {}
        for name, digest in self.names().items():
            names.setdefault(digest, []).append(name)
        found = []
        for digest in self._digests():
            with contextlib.suppress(UnknownImage):  # removed since it was listed
                found.append((self._read(digest), tuple(sorted(names.get(digest, ())))))
        return sorted(found, key=lambda each: -each[0].created)

    def names(self) -> dict[str, str]:
        """Name → digest."""
        directory = self.directory / "names"
        found = {}
        for file in directory.iterdir() if directory.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                found[file.name.replace("%2f", "/")] = file.read_text(encoding="ascii").strip()
        return found

    @contextmanager
    def using(self, reference: str) -> Iterator[Image]:
        """The image; no process removes it in this block. UnknownImage."""
        image = self.find(reference)
        with _locked(image.root.parent / _LOCK, fcntl.LOCK_SH) as held:
            if not held or not image.root.is_dir():
                raise UnknownImage(f"the image {reference} has just been removed from {self.directory}")
            yield image

    def prune(self, *, keep: Callable[[Image, tuple[str, ...]], bool] | None = None) -> Pruned:
        """Remove the images without a name, or those that `keep` refuses, together with their names; never one in use. Also removes what killed
        imports left."""
        keep = keep or (lambda _, names: bool(names))
        removed, size, in_use = [], 0, 0
        self._sweep()
        for image, names in self.all():
            if keep(image, names):
                continue
            with _locked(image.root.parent / _LOCK, fcntl.LOCK_EX) as held:
                if not held:
                    in_use += 1
                    continue
                for name in names:
                    (self.directory / "names" / name.replace("/", "%2f")).unlink(missing_ok=True)
                with self.place() as place:
                    image.root.parent.rename(place / "old")
            removed.append(image.digest)
            size += image.bytes
        return Pruned(tuple(removed), size, in_use)

    @property
    def _images(self) -> Path:
        return self.directory / "images"

    def _digests(self) -> list[str]:
        return (
            [name for name in os.listdir(self._images) if _WHOLE.fullmatch(name)]
            if self._images.is_dir()
            else []
        )

    def _read(self, digest: str) -> Image:
        directory = self._images / digest
        try:
            about: dict[str, Any] = json.loads((directory / _ABOUT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            pass_on(error)
            raise UnknownImage(
                f"the image {digest[:12]} is not in {self.directory}, or damaged: import it again"
            ) from error
        volumes = tuple(about.pop("volumes", ()))
        if unknown := about.keys() - {each.name for each in fields(Image)}:
            raise UnknownImage(
                f"the image {digest[:12]} in {self.directory} was stored by a newer version of Penstock, which says "
                f"{', '.join(sorted(unknown))} of it: upgrade this one, or import the image again"
            )
        return Image(digest=digest, root=directory / _ROOT, volumes=volumes, **about)

    def prepare(self) -> None:
        """Make the directory, or refuse one of another user."""
        for directory in (
            self.directory,
            self._images,
            self.directory / "names",
            self.directory / "unfinished",
        ):
            tree.make_passable(directory)
        status = self.directory.lstat()
        if status.st_uid != os.geteuid() or self.directory.is_symlink():
            raise SandboxError(f"{self.directory} belongs to another user: name another directory for images")

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A directory of this process, gone when the block ends, unless it was renamed."""
        self.prepare()
        self._sweep()
        place = self.directory / "unfinished" / secrets.token_hex(8)
        lock = place.with_suffix(".lock")
        temporary = place.with_suffix(".new")  # locked before anyone else can see it
        with temporary.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            temporary.rename(lock)
            tree.make_passable(place)
            try:
                yield place
            finally:
                _discard(place, lock)

    def _sweep(self) -> None:
        """Remove what dead processes left."""
        for lock in (self.directory / "unfinished").glob("*.lock"):
            with _locked(lock, fcntl.LOCK_EX) as held:
                if held and lock.exists():
                    _discard(lock.with_suffix(""), lock)


def _discard(place: Path, lock: Path) -> None:
    """Remove a place whose lock this process holds. One that cannot be removed is logged and stays for the next sweep: it ends nothing else."""
    try:
        caged.remove(place)
        lock.unlink(missing_ok=True)
    except (SandboxError, OSError) as error:
        log.warning("what an import or a build left cannot be removed now: %s", error)


def check_name(name: str) -> None:
    """ImageRefused for what cannot name an image."""
    if not NAME.fullmatch(name) or _DIGEST.fullmatch(name):
        raise ImageRefused(
            f"{name[:200]!r} cannot name an image: choose lower-case letters, digits and . _ - / : @, as in debian:12;"
            " only a tag, after the last colon, may have capital letters"
        )


@contextmanager
def _locked(file: Path, kind: int) -> Iterator[bool]:
    """Yields whether the lock was free; it is held for the block."""
    try:
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def free_bytes(directory: Path) -> int:
    """Bytes free on the disk that holds, or would hold, `directory`."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free
