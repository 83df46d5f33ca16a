"""Read a task directory from disk as a bundle.

Links, empty directories and permission bits in `environment/` travel. A link in another folder, such as `tests/`, becomes a copy of the file of that
folder to which it leads. Files above `INLINE_BYTES` stay on disk. Errors are ValueError, one sentence each.
"""

import os
import stat
from pathlib import Path
from typing import Final

from orchestrator.tasks.bundle import DIRECTORY_MODE, Bundle, BundleLimits, mode_of
from sandboxes.base import AnyFile, File, StoredFile

INLINE_BYTES: Final = 64 * 1024
"""Files up to this size are read at once."""
_LINKED: Final = "environment/"
_PLACES: Final = ("environment/", "environment/files/")


Shared = dict[tuple[bytes, int], File]
"""Files that were read, by content and mode: equal files of many tasks lie in memory once."""


def read_directory(
    directory: Path, limits: BundleLimits | None = None, shared: Shared | None = None
) -> Bundle:
    """The entries of a directory. Raises ValueError for an entry that a task cannot have, or more of them than `limits`. `shared`: of other
    directories that are read."""
    most = (limits or BundleLimits()).entries
    known: Shared = {} if shared is None else shared
    files: dict[str, AnyFile] = {}
    links: dict[str, str] = {}
    directories: dict[str, int] = {}
    open_folders = [""]
    while open_folders:
        own = open_folders.pop()  # empty, or with a slash at its end
        folder = os.path.join(directory, own)
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            relative = own + entry.name
            if entry.is_symlink():
                if relative.startswith(_LINKED):
                    links[relative] = os.readlink(entry.path)
                else:
                    files[relative] = _followed(directory, Path(entry.path), relative)
            elif entry.is_file(follow_symlinks=False):
                files[relative] = _file(entry.path, entry.stat(follow_symlinks=False), known)
            elif entry.is_dir(follow_symlinks=False):
                open_folders.append(f"{relative}/")
            else:
                raise ValueError(f"{relative} is neither a file nor a folder")
        if len(files) + len(links) + len(directories) > most:
            raise ValueError(
                f"it has more than {most:,} files, links and directories, the most that a task may have"
            )
        if own.startswith(_LINKED) and own not in _PLACES:
            mode = _directory_mode(os.stat(folder))
            if mode != DIRECTORY_MODE or not entries:
                directories[own.rstrip("/")] = mode
    return Bundle(files=files, links=links, directories=directories)


def _file(path: str, status: os.stat_result, shared: Shared) -> AnyFile:
    with open(path, "rb") as stream:
        if status.st_size > INLINE_BYTES:
            mode = _file_mode(status, mode_of(stream.read(4)))
            return StoredFile(source=Path(path), size=status.st_size, mode=mode)
        body = stream.read()
    mode = _file_mode(status, mode_of(body))
    return shared.setdefault((body, mode), File(body, mode))


def _file_mode(status: os.stat_result, usual: int) -> int:
    """The owner's bits, for all users: which other bits a checkout has depends on its machine's umask. A file that starts like a program is
    executable in any case."""
    mode = 0o755 if status.st_mode & stat.S_IXUSR else usual
    return mode if status.st_mode & stat.S_IWUSR else mode & 0o555


def _directory_mode(status: os.stat_result) -> int:
    closed = [own for own in (stat.S_IRUSR, stat.S_IWUSR, stat.S_IXUSR) if not status.st_mode & own]
    return DIRECTORY_MODE & ~sum(own | own >> 3 | own >> 6 for own in closed)


def _followed(directory: Path, path: Path, relative: str) -> AnyFile:
    top = (directory / relative.partition("/")[0]).resolve()
    try:
        reached = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise ValueError(f"{relative} is a link that leads to no file") from None
    if "/" not in relative or not reached.is_relative_to(top) or not reached.is_file():
        raise ValueError(
            f"{relative} is a link that does not lead to a file of its folder: put the file there instead"
        )
    return _file(str(reached), reached.stat(), {})
