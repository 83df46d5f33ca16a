"""Read a task directory from disk as a bundle.

Links, empty directories and permission bits travel, except setuid, setgid and sticky bits, and the bits that a umask takes. A link to a file
in `tests/`, in `solution/` or at the root becomes a copy of that file. Files
above `INLINE_BYTES` stay on disk. `.git` at the root is of the repository that holds the task, not of the task. Errors are ValueError, one
sentence each.
"""

import os
import re
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from orchestrator.tasks.bundle import (
    DIRECTORY_MODE,
    Bundle,
    BundleLimits,
    check_file_size,
    mode_of,
    top_of,
)
from sandboxes.base import AnyFile, File, StoredFile

REPOSITORY: Final = ".git"
"""At a task's root: the folder of a clone, or the file of a work tree or a submodule."""
INLINE_BYTES: Final = 64 * 1024
"""Files up to this size are read at once."""
_PLACED: Final = re.compile(r"(environment/|(steps/[^/]+/)?(tests|solution)/|steps/[^/]+/workdir/).+")
"""Paths of what sandboxes get."""
_OF_AGENT: Final = re.compile(r"environment/|steps/[^/]+/workdir/")
_TOP: Final = "environment/files/"


Shared = MutableMapping[tuple[bytes, int], File]
"""Files that were read, by content and mode: equal files of many tasks lie in memory once."""


@dataclass(slots=True)
class _Count:
    """Entries and bytes of a task, as far as it was read."""

    limits: BundleLimits
    entries: int = 0
    bytes: int = 0

    def add(self, path: str, size: int = 0) -> None:
        """Count an entry. ValueError if the task then has more than its limits."""
        self.entries += 1
        self.bytes += size
        if self.entries > self.limits.entries:
            raise self.too_many()
        check_file_size(path, size, self.limits)
        if self.bytes > self.limits.bytes:
            raise ValueError(f"it has more than {self.limits.bytes >> 20} MB, the most that a task may have")

    def too_many(self) -> ValueError:
        most = self.limits.entries
        return ValueError(
            f"it has more than {most:,} files, links and directories, the most that a task may have"
        )


def read_directory(
    directory: Path, limits: BundleLimits | None = None, shared: Shared | None = None
) -> Bundle:
    """The entries of a directory. Raises ValueError for an entry that a task cannot have, and as soon as it has read more than `limits`. `shared`: of
    other directories that are read."""
    count = _Count(limits or BundleLimits())
    most = count.limits.entries
    known: Shared = {} if shared is None else shared
    spread = not _others_read(directory, most)
    files: dict[str, AnyFile] = {}
    links: dict[str, str] = {}
    directories: dict[str, int] = {}
    open_folders = [""]
    while open_folders:
        own = open_folders.pop()  # empty, or with a slash at its end
        folder = os.path.join(directory, own)
        with os.scandir(folder) as found:
            # Two more than a task may have: one may be `.git`.
            entries = sorted(islice(found, most + 2), key=lambda entry: entry.name)
        if len(entries) > most + 1:
            raise count.too_many()
        for entry in entries:
            relative = own + entry.name
            if relative == REPOSITORY:
                continue
            if entry.is_symlink():
                if _OF_AGENT.match(relative) or (_PLACED.match(relative) and not os.path.isfile(entry.path)):
                    count.add(relative)
                    links[relative] = os.readlink(entry.path)
                else:
                    file = _followed(directory, Path(entry.path), relative, spread=spread)
                    count.add(relative, file.size)
                    files[relative] = file
            elif entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                count.add(relative, status.st_size)
                files[relative] = _file(entry.path, status, known, relative, spread=spread)
            elif entry.is_dir(follow_symlinks=False):
                open_folders.append(f"{relative}/")
            else:
                raise ValueError(f"{relative} is neither a file nor a folder")
        if _PLACED.match(own) and own != _TOP:
            mode = _bits(os.stat(folder), spread=spread)
            if mode != DIRECTORY_MODE or not entries:
                count.add(own)
                directories[own.rstrip("/")] = mode
    return Bundle(files=files, links=links, directories=directories)


def _file(path: str, status: os.stat_result, shared: Shared, relative: str, *, spread: bool) -> AnyFile:
    mode = _bits(status, spread=spread)
    large = status.st_size > INLINE_BYTES
    with open(path, "rb") as stream:
        body = stream.read(4 if large else -1)
    if not _OF_AGENT.match(relative):  # a program of the tests can be started in any case
        mode |= mode_of(body) & (mode & 0o444) >> 2
    if large:
        return StoredFile(source=Path(path), size=status.st_size, mode=mode)
    return shared.setdefault((body, mode), File(body, mode))


def _others_read(directory: Path, most: int) -> bool:
    """Whether other users may read anything in it. If not, a umask took their bits from all, and these say nothing. A directory of more than `most`
    entries is refused later."""
    left = most + 2
    open_folders = [os.fspath(directory)]
    while open_folders and left > 0:
        folder = open_folders.pop()
        with os.scandir(folder) as found:
            for entry in islice(found, left):
                left -= 1
                if entry.is_symlink() or (entry.name == REPOSITORY and Path(folder) == directory):
                    continue
                if entry.stat(follow_symlinks=False).st_mode & stat.S_IROTH:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    open_folders.append(entry.path)
    return False


def _bits(status: os.stat_result, *, spread: bool) -> int:
    """Permission bits that do not depend on the umask of a checkout's machine: whether the group may write does. `spread`: all have the owner's."""
    mode = status.st_mode & 0o777
    if spread:
        own = mode & 0o700
        return (own | own >> 3 | own >> 6) & 0o755
    return mode if mode & stat.S_IWOTH else mode & 0o755


def _followed(directory: Path, path: Path, relative: str, *, spread: bool) -> AnyFile:
    top = (directory / _folder(relative)).resolve()
    try:
        reached = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise ValueError(f"{relative} is a link that leads to no file") from None
    if not reached.is_relative_to(top) or not reached.is_file():
        raise ValueError(
            f"{relative} is a link that does not lead to a file of its folder: put the file there instead"
        )
    return _file(str(reached), reached.stat(), {}, relative, spread=spread)


def _folder(relative: str) -> str:
    """The folder that a link may not leave; empty for the whole task."""
    return top_of(relative) if "/" in relative else ""
