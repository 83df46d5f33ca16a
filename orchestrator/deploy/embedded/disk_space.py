"""Whether a disk has enough space for processes to live."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NEEDED_BYTES = 2 * 16 * 1024 * 1024
"""PostgreSQL's log grows by whole segments of 16 MB, and it dies without space for one. To come back it needs one segment to finish its recovery,
and the next to accept work. The other processes need little in comparison at a start (a journal's new segment, a file)."""

ENOUGH_BYTES = 2 * NEEDED_BYTES
"""A disk with this much free space no longer counts as full: it does not become full again at once."""


@dataclass(frozen=True, slots=True)
class Short:
    """A disk without enough space."""

    directory: Path
    free_bytes: int  # for unprivileged users; on a disk without free inodes this may be large

    def __str__(self) -> str:
        return f"the disk of {self.directory} is full ({self.free_bytes >> 20} MB free): free space there"


def short(directories: Iterable[Path], needed_bytes: int = NEEDED_BYTES) -> Short | None:
    """The first of the directories whose disk has less than `needed_bytes`, or no inode, left. Missing directories are skipped."""
    for directory in directories:
        try:
            disk = os.statvfs(directory)
        except OSError:
            continue
        free = disk.f_bavail * disk.f_frsize
        if free < needed_bytes or (disk.f_files and not disk.f_favail):
            return Short(directory, free)
    return None
