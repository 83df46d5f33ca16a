"""The difference between a work directory and what was placed there.

Files are compared by digest, never by time stamp: a program that rewrites a file within one clock tick, or
sets its time back, must not pass for unchanged.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes import tree
from sandboxes.base import ArtifactLimits, Artifacts, File, PathRefused, RefusedReason

_REPORTED = 100


@dataclass(frozen=True, slots=True)
class Placed:
    """What is remembered of a placed file: enough to recognise it, not its bytes. Of what is no file (`LINK`, `DIRECTORY`): that it was there."""

    size: int
    sha256: bytes
    executable: bool
    directory: bool = False

    @classmethod
    def of(cls, file: File) -> Placed:
        return cls(len(file.data), hashlib.sha256(file.data).digest(), bool(file.mode & 0o100))


LINK, DIRECTORY = Placed(-1, b"", False), Placed(-1, b"", False, directory=True)


@dataclass(slots=True)
class _Collector:
    limits: ArtifactLimits
    added: dict[str, File] = field(default_factory=dict)
    modified: dict[str, File] = field(default_factory=dict)
    refused: list[tuple[str, RefusedReason]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    total: int = 0

    def visit(self, entry: tree.Entry, placed: Placed | None) -> None:
        reason = self._look(entry, placed)
        if reason is not None:
            self.refused.append((entry.path, reason))

    def _look(self, entry: tree.Entry, placed: Placed | None) -> RefusedReason | None:
        if not entry.path.isprintable() and not _is_utf8(entry.path):
            return RefusedReason.NAME
        mode, size = entry.stat.st_mode, entry.stat.st_size
        if placed is None or placed.directory or not stat.S_ISDIR(mode):
            self.seen.add(entry.path)
        if stat.S_ISDIR(mode):
            return _directory_problem(entry, self.limits.depth)
        if not stat.S_ISREG(mode):
            return RefusedReason.LINK if stat.S_ISLNK(mode) else RefusedReason.SPECIAL
        try:
            if placed is not None and size == placed.size and bool(mode & 0o100) == placed.executable:
                whole = tree.read_at(entry.parent_fd, entry.name, entry.path, placed.size)
                if Placed.of(whole) == placed:
                    return None
            return self._take(entry, modified=placed is not None)
        except PathRefused as refused:
            return refused.reason
        except FileNotFoundError:  # removed since it was listed
            self.seen.discard(entry.path)
            return None

    def _take(self, entry: tree.Entry, *, modified: bool) -> RefusedReason | None:
        size, allocated = entry.stat.st_size, entry.stat.st_blocks * 512
        if len(self.added) + len(self.modified) >= self.limits.files:
            return RefusedReason.TOO_MANY
        if size > self.limits.file_bytes:
            return RefusedReason.TOO_LARGE
        # Tiny files may live in the inode and occupy no block: only what is larger than a page can be a bomb.
        if size > 1 << 16 and size > self.limits.ratio * allocated:
            return RefusedReason.SPARSE
        file = tree.read_at(entry.parent_fd, entry.name, entry.path, self.limits.file_bytes)
        if self.total + len(file.data) > self.limits.total_bytes:
            return RefusedReason.TOTAL
        self.total += len(file.data)
        (self.modified if modified else self.added)[entry.path] = file
        return None


def changed(work: Path, placed: Mapping[str, Placed], limits: ArtifactLimits) -> Artifacts:
    """Compare the tree at `work` with `placed` (relative path → what lay there)."""
    found = _Collector(limits)
    for entry in tree.walk(work, limits.skip, limits.depth):
        found.visit(entry, placed.get(entry.path))
    closed = tuple(f"{path}/" for path, _ in found.refused)
    deleted: list[str] = []
    gone = "\0"  # the directory that was found gone last, with what was below it
    for path in sorted(placed.keys() - found.seen):
        directory = placed[path].directory
        looked_into = path.split("/") if directory else path.split("/")[:-1]
        if path.startswith(closed) or limits.skip.intersection(looked_into):
            continue
        if directory and path.startswith(f"{gone}/"):
            continue
        gone = path if directory else gone
        deleted.append(path)
    return Artifacts(
        found.added,
        found.modified,
        tuple(deleted),
        tuple(found.refused[:_REPORTED]),
        complete=not found.refused,
        counts=Counter(reason for _, reason in found.refused),
    )


def _directory_problem(entry: tree.Entry, depth: int) -> RefusedReason | None:
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
