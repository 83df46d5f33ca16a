"""Files of this machine that builds read (`build_files`), and the identity of their content."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path

from sandboxes.base import ImageRefused
from sandboxes.machine import pass_on


def paths_of(files: Mapping[str, str]) -> dict[str, Path]:
    """The path of each name. ImageRefused names one that does not exist."""
    found = {name: Path(path) for name, path in files.items()}
    for name, path in found.items():
        if not path.exists():
            raise ImageRefused(f"sandbox.images.build_files: {name}: {path} does not exist")
    return found


def files_digest(files: Mapping[str, str]) -> str:
    """sha256 over names, permission bits and content, also of directories; empty without files. ImageRefused names a missing one."""
    if not files:
        return ""
    hasher = hashlib.sha256()
    for name, path in sorted(paths_of(files).items()):
        for entry in (path, *_below(path)):
            found = entry.stat() if entry == path else entry.lstat()
            place = str(entry.relative_to(path))
            hasher.update(json.dumps([name, place, found.st_mode, _content(entry, found)]).encode())
    return hasher.hexdigest()


def _below(path: Path) -> list[Path]:
    walk = os.walk(path, onerror=pass_on)
    return sorted(Path(directory, name) for directory, *names in walk for name in chain(*names))


def _content(path: Path, found: os.stat_result) -> str:
    """Empty for a directory, a device and a file that this process cannot read."""
    try:
        if stat.S_ISLNK(found.st_mode):
            return str(path.readlink())
        if stat.S_ISREG(found.st_mode):
            return _hashed(path, (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    except OSError as error:
        pass_on(error)
    return ""


@lru_cache(maxsize=10_000)
def _hashed(path: Path, _state: tuple[int, ...]) -> str:
    """Hashed once per state of the file: each sandbox that starts looks for its image."""
    with path.open("rb") as body:
        return hashlib.file_digest(body, "sha256").hexdigest()
