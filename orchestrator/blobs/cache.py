"""Files by their content, below one directory that the processes of a machine share.

Only this user can read or write the default directory. A process checks the content of each file at its first use: one that a loss of power
damaged is read from the data pool again.

A blob lies at `aa/<sha256>`, where aa are its first two digits. A file of several blobs lies at `aa/<sha256 of their names>.whole`. Each is written
under another name and renamed, so that it is whole or absent. Least recently used files go first when the cache is over its size. A file that was
used within `RECENT_S` stays, so the cache may exceed its size for as long as one attempt's start takes.
"""

import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from orchestrator.runtime.log import get
from orchestrator.tasks.message import BlobFile
from sandboxes.base import StoredFile
from sandboxes.owner import own_directory

log = get(__name__)

RECENT_S: Final = 3600.0
LOWERED: Final = 0.9
"""Share of the size to which a cleanup lowers the cache."""
MAX_CHECKED: Final = 1 << 16
"""Names of checked files in memory. When they are that many, each file is checked once more."""
_NEW: Final = ".new"


def default_root() -> Path:
    """The default directory: one per user."""
    return Path(tempfile.gettempdir()) / f"penstock-blobs-{os.geteuid()}"


@lru_cache(maxsize=1 << 15)
def _place(root: Path, sha: str) -> Path:
    return Path(f"{root}/{sha[:2]}/{sha}")


class BlobCache:
    """The cache in `root`, of about `size` bytes. OSError when its disk fails. All methods may block for the time of a disk access."""

    def __init__(self, root: Path, size: int) -> None:
        self._root = root
        self._size = size
        self._held: int | None = None  # bytes, once a file is added
        self._checked: set[str] = set()
        """Names of files whose content this process has seen to be right."""

    def missing(self, shas: Iterable[str]) -> list[str]:
        """Those blobs that the cache lacks. The others count as used now. SandboxError if another user can write the directory."""
        self.own()
        return [sha for sha in dict.fromkeys(shas) if not self._has(sha)]

    def own(self) -> None:
        """Create the default directory, or check that it is still ours: SandboxError. A directory that the configuration names is its operator's."""
        if self._root == default_root():
            own_directory(self._root, 0o700)

    def check(self) -> None:
        """Create the directory, and a file in it that is removed again. Raises OSError if this user cannot; SandboxError as for `own`."""
        self.own()
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self._root / f"{secrets.token_hex(8)}{_NEW}"
        try:
            probe.write_bytes(b"")
        finally:
            probe.unlink(missing_ok=True)

    def _has(self, sha: str) -> bool:
        path = self._path(sha)
        if not _used(path):
            return False
        if sha not in self._checked:
            try:
                with path.open("rb") as file:
                    right = hashlib.file_digest(file, "sha256").hexdigest() == sha
            except FileNotFoundError:  # another process has removed it
                return False
            if not right:
                log.warning("blobs.damaged", file=str(path))
                path.unlink(missing_ok=True)
                return False
            self._check(sha)
        return True

    def _check(self, name: str) -> None:
        """Note that the content of a file is right."""
        if len(self._checked) >= MAX_CHECKED:
            self._checked.clear()
        self._checked.add(name)

    def add(self, bodies: Mapping[str, bytes]) -> None:
        """Keep blobs by the hex sha256 of their bytes. ValueError for a body with another sha256; SandboxError as for `missing`."""
        self.own()
        for sha, body in bodies.items():
            if hashlib.sha256(body).hexdigest() != sha:
                raise ValueError(f"the blob {sha} has other content than its name says")
            path = self._path(sha)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_NEW}")
            try:
                new.write_bytes(body)
                new.rename(path)
            finally:
                new.unlink(missing_ok=True)
            self._check(sha)
            self._grown(len(body))

    def read(self, sha: str) -> bytes:
        """The bytes of one blob. FileNotFoundError if the cache lacks it."""
        return self._path(sha).read_bytes()

    def stored(self, blob: BlobFile, mode: int) -> StoredFile:
        """The file that these blobs make up. ValueError if they hold another number of bytes than it says."""
        path = self._path(blob.parts[0]) if len(blob.parts) == 1 else self._whole(blob)
        size = os.stat(path).st_size
        _check_size(blob, size)
        return StoredFile(source=path, size=size, mode=mode, content=path.name)

    def _whole(self, blob: BlobFile) -> Path:
        name = hashlib.sha256(",".join(blob.parts).encode()).hexdigest()
        path = self._path(name).with_name(f"{name}.whole")
        if name in self._checked and _used(path):
            return path  # one that another process left may be damaged: made again
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_NEW}")
        written = 0
        try:
            with new.open("wb") as sink:
                for sha in blob.parts:
                    written += sink.write(self.read(sha))
                    if written > blob.size:  # the list may repeat a blob thousands of times
                        raise ValueError(f"a file of {blob.size:,} bytes lies in blobs of more bytes")
            _check_size(blob, written)
            new.rename(path)
        finally:
            new.unlink(missing_ok=True)
        self._check(name)
        self._grown(blob.size)
        return path

    def _path(self, sha: str) -> Path:
        return _place(self._root, sha)

    def _files(self) -> list[Path]:
        return [file for folder in self._root.iterdir() if folder.is_dir() for file in folder.iterdir()]

    def _grown(self, size: int) -> None:
        if self._held is None:
            self._held = sum(held for _, held, _ in self._found())
        else:
            self._held += size
        if self._held > self._size:
            self._held = self._shrink()

    def _found(self) -> list[tuple[float, int, Path]]:
        """(last use, bytes, path) of every file. Other processes may remove some at the same time."""
        found: list[tuple[float, int, Path]] = []
        for file in self._files():
            try:
                status = file.stat()
            except FileNotFoundError:
                continue
            found.append((status.st_mtime, status.st_size, file))
        return found

    def _shrink(self) -> int:
        """Remove the least recently used files; returns the bytes that stay."""
        now, found = time.time(), self._found()
        held = sum(size for _, size, _ in found)
        for used, size, file in sorted(found, key=lambda entry: entry[0]):
            if held <= LOWERED * self._size or now - used < RECENT_S:
                break
            file.unlink(missing_ok=True)
            held -= size
        if held > self._size:
            log.warning("blobs.cache_over_size", directory=str(self._root), bytes=held, size=self._size)
        return held


def _check_size(blob: BlobFile, size: int) -> None:
    if size != blob.size:
        raise ValueError(f"a file of {blob.size:,} bytes lies in blobs of {size:,} bytes")


def _used(path: Path | str) -> bool:
    """Whether a file is there; it counts as used now."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError as error:  # `utime` leaves the name out
        raise OSError(error.errno, error.strerror, str(path)) from None
    return True
