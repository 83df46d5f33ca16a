"""When a disk takes nothing more: told apart from every other failure, because it passes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxes.base import SandboxError, SandboxFull

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@contextmanager
def making(root: Path) -> Iterator[None]:
    """Around whatever makes files for a new sandbox below `root`: an OSError comes out as `SandboxFull`, or as `SandboxError` where it is not
    room that is missing."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise SandboxFull(
                f"the disk of {root} takes no sandbox ({error.strerror}): free space there, or set TMPDIR to another disk"
            ) from error
        raise SandboxError(f"cannot make a sandbox in {root}: {error}") from error
