"""A program that the kernel cannot start: arguments too long, or with a NUL or half a surrogate pair.

Such arguments come from a model, so they are a result, not an error.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence

from sandboxes.base import ExecResult, KilledBy
from sandboxes.machine import fault
from sandboxes.program import SupervisedProgram

_ARGUMENT = 128 << 10
"""Size in bytes from which Linux rejects an argument."""


class Unstartable:
    """Ended before it started, with exit code 126 and the reason on stderr; implements `base.Process`."""

    def __init__(self, reason: str) -> None:
        self.last_output = time.monotonic()
        self._unread = f"cannot run: {reason}\n".encode()
        self._result = ExecResult(
            exit_code=126,
            stdout=b"",
            stderr=self._unread,
            truncated=False,
            killed_by=KilledBy.NONE,
            wall_s=0.0,
            cpu_s=0.0,
        )

    def cpu_s(self) -> float:
        return 0.0

    async def read(self) -> tuple[bytes, bytes]:
        unread, self._unread = self._unread, b""
        return b"", unread

    async def wait(self) -> ExecResult:
        return self._result

    async def kill(self, reason: KilledBy = KilledBy.CALLER) -> ExecResult:
        return self._result


def spawn(make: Callable[[], SupervisedProgram]) -> SupervisedProgram | Unstartable:
    """`make()`, with errors of the program's own arguments turned into a result."""
    try:
        return make()
    except ValueError as error:
        return Unstartable(str(error))
    except OSError as error:
        if error.errno == errno.E2BIG:
            return Unstartable("argument list too long")
        raise fault(error, f"cannot start a program: {error}") from error


def unstartable(argv: Sequence[str]) -> str | None:
    """Why the kernel rejects these arguments; None if it may accept them."""
    for argument in argv:
        if "\0" in argument:
            return "embedded null byte"
        try:
            size = len(os.fsencode(argument))
        except UnicodeEncodeError as error:
            return str(error)
        if size >= _ARGUMENT:
            return "argument list too long"
    return None
