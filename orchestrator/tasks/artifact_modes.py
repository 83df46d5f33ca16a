"""Changes outside of the work directory in the format of a result: `collected`, with an absolute path, and with the type of the entry in its mode.

A type is that of stat: 0 for a regular file, S_IFLNK, S_IFDIR, and S_IFCHR for a deletion, as in the layer of an image. Verifier runners of earlier
versions know collected files alone. They refuse to place one at such a path, so they give no verdict on a part of the work.
"""

import stat
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64
from orchestrator.contracts.states import Left
from sandboxes.elsewhere import lies_elsewhere

GONE: Final = stat.S_IFCHR
_NO_IMAGE: Final = "lies outside of the work directory, where the environment of the tests has no image,"
TYPES: Final = (0, stat.S_IFLNK, stat.S_IFDIR, GONE)
_OF_KIND: Final = {Left.LINK: stat.S_IFLNK, Left.DIRECTORY: stat.S_IFDIR}


def link_at(path: str, target: str) -> ArtifactFile:
    """A new link, or one with another target."""
    return ArtifactFile(path=path, body=b64(target.encode()), mode=stat.S_IFLNK | 0o777, kind=Left.COLLECTED)


def directory_at(path: str, mode: int) -> ArtifactFile:
    """A directory that is empty or has permissions other than 755."""
    return ArtifactFile(path=path, body="", mode=stat.S_IFDIR | (mode & 0o777), kind=Left.COLLECTED)


def gone_at(path: str) -> ArtifactFile:
    """Something of the image that the agent deleted."""
    return ArtifactFile(path=path, body="", mode=GONE, kind=Left.COLLECTED)


def at_path(file: ArtifactFile, path: str) -> ArtifactFile:
    """A change of the work directory as one at an absolute path outside of it. What stayed behind keeps its name."""
    if file.kind is Left.BEHIND:
        return file
    if file.deleted:
        return replace(gone_at(path), step=file.step)
    mode = _OF_KIND.get(file.kind, 0) | (file.mode & 0o777)
    return replace(file, path=path, kind=Left.COLLECTED, mode=mode)


def is_change(file: ArtifactFile) -> bool:
    """Whether it is a change in one of an image's places outside of the work directory."""
    return file.kind is Left.COLLECTED and lies_elsewhere(file.path)


def type_of(file: ArtifactFile) -> int:
    """The type of a collected entry: one of `TYPES`."""
    return stat.S_IFMT(file.mode)


def placeable(files: Sequence[ArtifactFile], *, built: bool) -> Sequence[ArtifactFile]:
    """The files that verification can place. `built`: it has an image; without one, changes outside of the work directory stay behind by name."""
    if built or not any(is_change(file) for file in files):
        return files
    return [
        ArtifactFile(path=file.path, body=None, kind=Left.BEHIND, why=_NO_IMAGE, step=file.step)
        if is_change(file)
        else file
        for file in files
    ]
