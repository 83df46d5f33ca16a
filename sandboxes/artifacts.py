"""The difference between a work directory and the files that were placed in it.

Files are compared by digest, never by time stamp. A program that rewrites a file within one clock tick, or resets its
time stamp, cannot make it look unchanged. Symbolic links are read, never followed. `stays` decides which links may be
recreated elsewhere.
"""

from __future__ import annotations

import enum
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from sandboxes import tree
from sandboxes.base import (
    WORK,
    AnyFile,
    ArtifactLimits,
    Artifacts,
    File,
    PathRefused,
    RefusedReason,
    digest_of,
)
from sandboxes.elsewhere import place_of, target_of
from sandboxes.lost_properties import Losses, named
from sandboxes.machine import pass_on
from sandboxes.paths import parents_of_relative

T = TypeVar("T")
_REPORTED = 100
MAX_PATH = 4_000
"""Bytes of a path that is copied: below a directory of any sandbox, Linux still opens it (4,095)."""
_USUAL = 0o755  # mode of a directory that is created for the files in it
_TARGET = 4095  # bytes of a link's target that Linux accepts
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Read-only in every sandbox, and the same where agents work and where verifiers judge. The verifier's own files are never here."""


class PlacedKind(enum.Enum):
    FILE = enum.auto()
    LINK = enum.auto()
    DIRECTORY = enum.auto()
    MADE = enum.auto()  # a directory that the caller requested: reported neither as new nor as deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEntry:
    """The record of a placed entry: enough to recognise it, not its bytes. For a link, the digest is that of its target."""

    kind: PlacedKind
    size: int = 0
    sha256: bytes = b""
    mode: int = 0

    @classmethod
    def of(cls, file: AnyFile) -> PlacedEntry:
        return cls(kind=PlacedKind.FILE, size=file.size, sha256=digest_of(file), mode=file.mode & 0o777)

    @classmethod
    def link(cls, target: str) -> PlacedEntry:
        return cls(kind=PlacedKind.LINK, size=0, sha256=hashlib.sha256(os.fsencode(target)).digest())

    @classmethod
    def folder(cls, mode: int) -> PlacedEntry:
        return cls(kind=PlacedKind.DIRECTORY, mode=mode & 0o777)

    @classmethod
    def made(cls, mode: int) -> PlacedEntry:
        return cls(kind=PlacedKind.MADE, mode=mode & 0o777)

    @property
    def directory(self) -> bool:
        return self.kind in (PlacedKind.DIRECTORY, PlacedKind.MADE)


DIRECTORY = PlacedEntry(kind=PlacedKind.DIRECTORY, mode=_USUAL)


def stays(path: str, target: str) -> bool:
    """Whether a link at `path`, relative to the work directory, leads into the work directory or `SYSTEM`, regardless of the other links that stay.

    `..` may occur only at the beginning of a relative target. There it goes up real directories. After a name it may go up from
    another link's target. The target need not exist.
    """
    if not target or len(os.fsencode(target)) > _TARGET or not _is_utf8(target):
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    if target.startswith("/"):
        top = f"/{parts[0]}" if parts else "/"
        return ".." not in parts and (top == WORK or top in SYSTEM)
    parent_steps = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return ".." not in parts[parent_steps:] and parent_steps <= path.count("/")


def stays_in_image(path: str, target: str) -> bool:
    """As `stays`, for a sandbox on an image: a link may lead to its other places as well. `path`: absolute outside of the work directory."""
    full = target_of(path, target)
    if full is None or len(os.fsencode(target)) > _TARGET or not _is_utf8(target):
        return False
    top = "/" + full.split("/")[1]
    return top == WORK or top in SYSTEM or place_of(full) != ""


@dataclass(slots=True, kw_only=True)
class _Collector:
    limits: ArtifactLimits
    work: str
    spool: Path | None
    losses: Losses
    at: str
    leads: Callable[[str, str], bool]
    above_placed: Collection[str]
    added: dict[str, AnyFile] = field(default_factory=dict)
    modified: dict[str, AnyFile] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: dict[str, int] = field(default_factory=dict)
    refused: list[tuple[str, RefusedReason]] = field(default_factory=list)  # the first ones
    counts: Counter[RefusedReason] = field(default_factory=Counter)  # of all refused ones
    covers: set[str] = field(default_factory=set)  # refused ones above placed ones
    seen: set[str] = field(default_factory=set)  # placed ones
    filled: set[str] = field(default_factory=set)  # directories that the files in them create
    total: int = 0
    in_memory: int = 0

    @property
    def count(self) -> int:
        return len(self.added) + len(self.modified) + len(self.links)

    def visit(self, entry: tree.TreeEntry, placed: PlacedEntry | None) -> None:
        reason = self._look(entry, placed)
        if reason is not None:
            self._refuse(entry.path, reason)
            if placed is not None and not stat.S_ISDIR(entry.stat.st_mode):
                self.seen.discard(entry.path)  # the placed entry no longer exists
            return
        if not stat.S_ISLNK(entry.stat.st_mode):
            self.losses.inspect(entry)
        if not stat.S_ISDIR(entry.stat.st_mode):
            self.filled.update(parents_of_relative(entry.path))

    def _refuse(self, path: str, reason: RefusedReason) -> None:
        self.counts[reason] += 1
        if len(self.refused) < _REPORTED:
            self.refused.append((path, reason))
        if path in self.above_placed:
            self.covers.add(path)

    def _look(self, entry: tree.TreeEntry, placed: PlacedEntry | None) -> RefusedReason | None:
        if not entry.path.isprintable() and not _is_utf8(entry.path):
            return RefusedReason.NAME
        if len(os.fsencode(entry.path)) > MAX_PATH:
            return RefusedReason.LONG
        mode = entry.stat.st_mode
        if placed is not None and (placed.directory or not stat.S_ISDIR(mode)):
            self.seen.add(entry.path)
        if stat.S_ISDIR(mode):
            if (problem := _directory_problem(entry, self.limits.depth)) is None:
                self.directories[entry.path] = stat.S_IMODE(mode) & 0o777
            return problem
        try:
            if stat.S_ISLNK(mode):
                return self._link(entry, placed)
            if not stat.S_ISREG(mode):
                return RefusedReason.SPECIAL
            file_placed = placed is not None and placed.kind is PlacedKind.FILE
            if placed is not None and file_placed and self._is(entry, placed):
                return None
            return self._take(entry, modified=file_placed)
        except PathRefused as refused:
            return refused.reason
        except FileNotFoundError:  # removed after the listing
            self.seen.discard(entry.path)
            return None

    def _is(self, entry: tree.TreeEntry, placed: PlacedEntry) -> bool:
        """Whether a file is still the placed one."""
        if (entry.stat.st_size, entry.stat.st_mode & 0o777) != (placed.size, placed.mode):
            return False
        return tree.sha256_at(entry.parent_fd, entry.name, entry.path, placed.size) == placed.sha256

    def _link(self, entry: tree.TreeEntry, placed: PlacedEntry | None) -> RefusedReason | None:
        try:
            target = os.readlink(entry.name, dir_fd=entry.parent_fd)
        except FileNotFoundError:
            raise
        except OSError as error:  # no longer a directory
            pass_on(error)
            return RefusedReason.LINK
        if placed == PlacedEntry.link(target):
            return None
        if self.work != WORK and (target == self.work or target.startswith(f"{self.work}/")):
            target = WORK + target.removeprefix(self.work)
        if not self.leads(f"{self.at}/{entry.path}" if self.at else entry.path, target):
            return RefusedReason.OUTSIDE
        if self.count >= self.limits.files:
            return RefusedReason.TOO_MANY
        self.links[entry.path] = target
        return None

    def _take(self, entry: tree.TreeEntry, *, modified: bool) -> RefusedReason | None:
        size, allocated = entry.stat.st_size, entry.stat.st_blocks * 512
        if self.count >= self.limits.files:
            return RefusedReason.TOO_MANY
        if size > self.limits.file_bytes:
            return RefusedReason.TOO_LARGE
        # Tiny files may live in the inode and occupy no block. Only a file larger than a page can be a bomb.
        if size > 1 << 16 and size > self.limits.ratio * allocated:
            return RefusedReason.SPARSE
        if self.total + size > self.limits.total_bytes:
            return RefusedReason.TOTAL
        file = self._read(entry, size)
        self.total += file.size
        (self.modified if modified else self.added)[entry.path] = file
        return None

    def _read(self, entry: tree.TreeEntry, size: int) -> AnyFile:
        most = self.limits.file_bytes
        fits = self.limits.memory_bytes is None or self.in_memory + size <= self.limits.memory_bytes
        if fits or self.spool is None:
            file = tree.read_at(entry.parent_fd, entry.name, entry.path, most)
            self.in_memory += file.size
            return file
        self.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(entry.stat.st_mode) & 0o777
        return tree.copy_at(entry.parent_fd, entry.name, entry.path, most, self.spool / str(self.count), mode)

    def kept_directories(self, placed: Mapping[str, PlacedEntry]) -> dict[str, int]:
        """Directories that must be recreated explicitly, with their permission bits. Those above the limit are refused."""
        recreated: dict[str, int] = {}
        for path, mode in sorted(self.directories.items(), reverse=True):  # deeper paths come first
            earlier = placed.get(path)
            known = earlier is not None and earlier.directory
            expected_mode = earlier.mode if earlier is not None and known else _USUAL
            if (known or path in self.filled) and mode == expected_mode:
                self.filled.update(parents_of_relative(path) if known else ())
                continue
            if self.count + len(recreated) >= self.limits.files:
                self._refuse(path, RefusedReason.TOO_MANY)
                continue
            recreated[path] = mode
            self.filled.update(parents_of_relative(path))
        return dict(sorted(recreated.items()))


def changed(
    work: Path,
    placed: Mapping[str, PlacedEntry],
    limits: ArtifactLimits,
    *,
    called: str = WORK,
    hidden: Collection[str] = (),
    spool: Path | None = None,
    at: str = "",
    leads: Callable[[str, str], bool] = stays,
) -> Artifacts:
    """Compare the tree at `work` with `placed` (relative path → the placed entry). `called`: the work directory's other name for its programs.
    `hidden`: entries that programs do not see. `spool`: a new directory of the caller's, for what exceeds `limits.memory_bytes`. `at`: where programs
    see the tree, if it is not the work directory. `leads`: whether a link (path, from `at` on, and target) may be recreated elsewhere."""
    found = _Collector(
        limits=limits,
        work=called,
        spool=spool,
        losses=Losses(work),
        at=at,
        leads=leads,
        above_placed={parent for path in placed for parent in parents_of_relative(path)},
    )
    for entry in tree.walk(work, limits.skip, limits.depth):
        if entry.path not in hidden:
            found.visit(entry, placed.get(entry.path))
    directories = found.kept_directories(placed)
    deleted: list[str] = []
    deleted_directory = "\0"  # the last directory that was found deleted, with everything below it
    for path in sorted(placed.keys() - found.seen):
        if placed[path].kind is PlacedKind.MADE:
            continue
        directory = placed[path].directory
        searched = path.split("/") if directory else path.split("/")[:-1]
        if limits.skip.intersection(searched) or not found.covers.isdisjoint(parents_of_relative(path)):
            continue
        if directory and path.startswith(f"{deleted_directory}/"):
            continue
        deleted_directory = path if directory else deleted_directory
        deleted.append(path)
    return Artifacts(
        added=found.added,
        modified=found.modified,
        deleted=tuple(deleted),
        refused=tuple(found.refused),
        complete=not found.refused,
        counts=found.counts,
        links=found.links,
        directories=directories,
        lost=tuple(found.losses.named),
        lost_counts=dict(found.losses.counts),
    )


def together(found: Artifacts, more: Artifacts, at: str) -> Artifacts:
    """Two comparisons as one. The paths of `more` lie below the absolute path `at`."""

    def below(entries: Mapping[str, T]) -> dict[str, T]:
        return {f"{at}/{path}": entry for path, entry in entries.items()}

    refused = (*found.refused, *((f"{at}/{path}", reason) for path, reason in more.refused))
    return Artifacts(
        added={**found.added, **below(more.added)},
        modified={**found.modified, **below(more.modified)},
        deleted=(*found.deleted, *(f"{at}/{path}" for path in more.deleted)),
        refused=refused[:_REPORTED],
        complete=found.complete and more.complete,
        counts=Counter(found.counts) + Counter(more.counts),
        links={**found.links, **below(more.links)},
        directories={**found.directories, **below(more.directories)},
        lost=named((*found.lost, *((f"{at}/{path}", lost) for path, lost in more.lost))),
        lost_counts=Counter(found.lost_counts) + Counter(more.lost_counts),
    )


def renamed(found: Artifacts, name: Callable[[str], str]) -> Artifacts:
    """A comparison with other paths."""

    def under(entries: Mapping[str, T]) -> dict[str, T]:
        return {name(path): entry for path, entry in entries.items()}

    return replace(
        found,
        added=under(found.added),
        modified=under(found.modified),
        deleted=tuple(map(name, found.deleted)),
        refused=tuple((name(path), reason) for path, reason in found.refused),
        links=under(found.links),
        directories=under(found.directories),
        lost=tuple((name(path), lost) for path, lost in found.lost),
    )


def left_of(limits: ArtifactLimits, found: Artifacts) -> ArtifactLimits:
    """The rest of `limits` after `found`."""
    files = [*found.added.values(), *found.modified.values()]
    in_memory = sum(file.size for file in files if isinstance(file, File))
    return replace(
        limits,
        files=max(0, limits.files - len(files) - len(found.links) - len(found.directories)),
        total_bytes=max(0, limits.total_bytes - sum(file.size for file in files)),
        memory_bytes=None if limits.memory_bytes is None else max(0, limits.memory_bytes - in_memory),
    )


def _directory_problem(entry: tree.TreeEntry, depth: int) -> RefusedReason | None:
    if entry.depth >= depth:
        return RefusedReason.DEPTH
    if not os.access(entry.name, os.R_OK | os.X_OK, dir_fd=entry.parent_fd, follow_symlinks=False):
        return RefusedReason.UNREADABLE
    return None


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
