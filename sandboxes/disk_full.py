"""Full disks, distinguished from every other failure because they are temporary."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxes.base import SandboxFull
from sandboxes.machine import fault

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


@contextmanager
def making(root: Path) -> Iterator[None]:
    """Wrap code that creates files for a new sandbox below `root`. An OSError becomes `SandboxFull` if the disk is full, `MachineFault` if
    this machine fails otherwise, else `SandboxError`."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise SandboxFull(
                f"the disk of {root} takes no sandbox ({error.strerror}): free space there, or set TMPDIR to another disk"
            ) from error
        raise fault(error, f"cannot make a sandbox in {root}: {error}") from error


@contextmanager
def storing(directory: Path) -> Iterator[None]:
    """Wrap code that writes an image, or the inputs of its build, below `directory`. Errors as those of `making`."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise SandboxFull(
                f"the disk of {directory} takes no image ({error.strerror}): free space there, or name another directory"
                " (sandbox.images.directory)"
            ) from error
        raise fault(error, f"cannot store an image in {directory}: {error}") from error
