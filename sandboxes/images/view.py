"""The root directory of a sandbox on an image: what of the image programs find around the sandbox's own places.

Bubblewrap 0.8 follows links of the image when it makes a mount point below them, out to the host. So nothing is ever mounted below a directory of
the image. The sandbox has its own directories on the way to each of its places, and the image's other entries there are bound into them, one by
one. A link or a file of the image on the way is left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from sandboxes.base import ImageRefused

_MAX_MOUNTS = 2_000


def view(root: Path, system: Path, places: Collection[str]) -> list[str]:
    """Bubblewrap's options for the image at `root`, which bubblewrap itself finds at `system`, around `places` (absolute paths). Those at and below
    them are left to the caller. ImageRefused if a place lies among too many entries of the image."""
    ways = {parent for place in places for parent in _parents(place)}
    options: list[str] = []
    _lay(root, system, "", frozenset(places), ways, options)
    if len(options) > 3 * _MAX_MOUNTS:
        raise ImageRefused(
            f"the image has more than {_MAX_MOUNTS} entries around its work directory: choose another WORKDIR"
        )
    return options


def _lay(
    root: Path, system: Path, at: str, places: frozenset[str], ways: set[str], options: list[str]
) -> None:
    for name in sorted(os.listdir(f"{root}{at}")):
        path = f"{at}/{name}"
        if path in places:
            continue
        mode = os.lstat(f"{root}{path}").st_mode
        if path in ways:
            if stat.S_ISDIR(mode):
                _lay(root, system, path, places, ways, options)
        elif stat.S_ISLNK(mode):
            options += ["--symlink", os.readlink(f"{root}{path}"), path]
        elif stat.S_ISDIR(mode) and not os.listdir(f"{root}{path}"):
            options += ["--dir", path]
        elif stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            options += ["--ro-bind", f"{system}{path}", path]


def _parents(place: str) -> list[str]:
    return [place[:at] for at in range(1, len(place)) if place[at] == "/"]
