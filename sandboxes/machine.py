"""Errors of this machine, as opposed to those that programs, files and images of a sandbox can cause."""

from __future__ import annotations

import errno

from sandboxes.base import MachineFault, SandboxError

FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""No descriptors, a disk that is full, over its quota or read-only, a disk that fails. Memory and processes are absent: programs can use up both."""


def is_fault(error: BaseException) -> bool:
    """Whether an error is one of this machine."""
    return isinstance(error, MachineFault) or (isinstance(error, OSError) and error.errno in FAULTS)


def pass_on(error: BaseException) -> None:
    """Raise an error of this machine again, for code that takes every other OSError as a statement about a file."""
    if is_fault(error):
        raise error


def fault(error: Exception, says: str) -> SandboxError:
    """The error that `says` what failed: a MachineFault if `error` is one of this machine."""
    return MachineFault(says) if is_fault(error) else SandboxError(says)
