"""Whether there is room for processes to live on a disk."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

NEEDED_BYTES = 2 * 16 * 1024 * 1024
"""PostgreSQL's log grows by whole segments of 16 MB, and it dies when it gets none: to come back it needs one to end its recovery, and the
next to accept work. What all others need at a start (a journal's new segment, a file) is little beside it."""

ENOUGH_BYTES = 2 * NEEDED_BYTES
"""So much, and a disk that was full is not any more: it does not become so again at once."""


@dataclass(frozen=True, slots=True)
class Short:
    """A disk without room."""

    directory: Path
    free_bytes: int  # for users without rights; on a disk that has no more inodes this may be much

    def __str__(self) -> str:
        return f"the disk of {self.directory} is full ({self.free_bytes >> 20} MB free): free space there"


def short(directories: Iterable[Path], needed_bytes: int = NEEDED_BYTES) -> Short | None:
    """The first of the directories whose disk has less than `needed_bytes`, or not one inode, left. Those that are not there are passed over."""
    for directory in directories:
        try:
            disk = os.statvfs(directory)
        except OSError:
            continue
        free = disk.f_bavail * disk.f_frsize
        if free < needed_bytes or (disk.f_files and not disk.f_favail):
            return Short(directory, free)
    return None
