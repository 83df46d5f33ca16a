"""Files of this machine that builds read (`build_files`), and the identity of their content."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path

from sandboxes.base import SandboxError
from sandboxes.machine import pass_on

State = tuple[str, str, str, int, tuple[int, ...]]
"""Name, path, place below it, mode, and what changes with the content."""


def paths_of(files: Mapping[str, str]) -> dict[str, Path]:
    """The path of each name. SandboxError names one that this machine lacks: no task is at fault."""
    found = {name: Path(path) for name, path in files.items()}
    for name, path in found.items():
        if not path.exists():
            raise SandboxError(f"sandbox.images.build_files: {name}: {path} does not exist")
    return found


def files_digest(files: Mapping[str, str]) -> str:
    """sha256 over names, permission bits and content, also of directories; empty without files. SandboxError names a missing one."""
    if not files:
        return ""
    return _digest(tuple(_states(files)))


def _states(files: Mapping[str, str]) -> Iterator[State]:
    for name, path in sorted(paths_of(files).items()):
        for entry in (path, *_below(path)):
            found = entry.stat() if entry == path else entry.lstat()
            times = found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            yield name, str(path), str(entry.relative_to(path)), found.st_mode, times


@lru_cache(maxsize=4)
def _digest(states: tuple[State, ...]) -> str:
    """Read once per state of all files: each sandbox that starts looks for its image."""
    hasher = hashlib.sha256()
    for name, path, place, mode, _ in states:
        hasher.update(json.dumps([name, place, mode, _content(Path(path, place), mode)]).encode())
    return hasher.hexdigest()


def _below(path: Path) -> list[Path]:
    walk = os.walk(path, onerror=pass_on)
    return sorted(Path(directory, name) for directory, *names in walk for name in chain(*names))


def _content(path: Path, mode: int) -> str:
    """Empty for a directory, a device and a file that this process cannot read."""
    try:
        if stat.S_ISLNK(mode):
            return str(path.readlink())
        if stat.S_ISREG(mode):
            with path.open("rb") as body:
                return hashlib.file_digest(body, "sha256").hexdigest()
    except OSError as error:
        pass_on(error)
    return ""
