"""Properties that the copy of a file or directory lacks: special permission bits, its other names, extended attributes.

It is looked up where the entry is read anyway: no entry is visited twice.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from sandboxes.base import Lost
from sandboxes.tree import TreeEntry

NAMED = 5
"""Paths that are named of each kind."""
_BITS = ((stat.S_ISUID, Lost.SET_USER_ID), (stat.S_ISGID, Lost.SET_GROUP_ID), (stat.S_ISVTX, Lost.STICKY))
_OF_LAYERS = ("user.overlay.", "user.fuseoverlayfs.", "user.containers.")
_ACLS, _DEFAULT_ACL = "system.posix_acl_", "system.posix_acl_default"


class Losses:
    """The losses of one work directory, in the order in which they are found."""

    def __init__(self, work: Path) -> None:
        self.named: list[tuple[str, Lost]] = []
        self.counts: Counter[Lost] = Counter()
        self._files: set[tuple[int, int]] = set()
        # New entries inherit these from the directory around them, also where no program requested them.
        self._inherited_bits = work.stat().st_mode & stat.S_ISGID
        self._inherited_acl = _DEFAULT_ACL in _attributes(str(work))

    def inspect(self, entry: TreeEntry) -> None:
        """Look at a file or directory that the copy has."""
        mode, directory = entry.stat.st_mode, stat.S_ISDIR(entry.stat.st_mode)
        for bit, lost in _BITS:
            if mode & bit and not (directory and bit & self._inherited_bits):
                self._add(entry.path, lost)
        if not directory and entry.stat.st_nlink > 1:
            file = (entry.stat.st_dev, entry.stat.st_ino)
            if file in self._files:
                self._add(entry.path, Lost.HARD_LINK)
            self._files.add(file)
        names = _attributes(f"/proc/self/fd/{entry.parent_fd}/{entry.name}")
        if any(name.startswith("user.") and not name.startswith(_OF_LAYERS) for name in names):
            self._add(entry.path, Lost.ATTRIBUTES)
        if not self._inherited_acl and any(name.startswith(_ACLS) for name in names):
            self._add(entry.path, Lost.ACCESS_LIST)

    def _add(self, path: str, lost: Lost) -> None:
        if self.counts[lost] < NAMED:
            self.named.append((path, lost))
        self.counts[lost] += 1


def named(found: Iterable[tuple[str, Lost]]) -> tuple[tuple[str, Lost], ...]:
    """Of each kind the first `NAMED` paths."""
    kept: list[tuple[str, Lost]] = []
    counts: Counter[Lost] = Counter()
    for path, lost in found:
        counts[lost] += 1
        if counts[lost] <= NAMED:
            kept.append((path, lost))
    return tuple(kept)


def _attributes(path: str) -> list[str]:
    """Empty where the file system has no extended attributes."""
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError:
        return []
