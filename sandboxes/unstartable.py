"""A program that no kernel accepts: arguments too long, a NUL or half a surrogate pair in one of them.

Such arguments come from a model, so they are a result, not an error.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from sandboxes.base import ExecResult, KilledBy, SandboxError
from sandboxes.program import Program


class Unstartable:
    """Ended before it began, with exit code 126 and the reason on stderr; implements `base.Process`."""

    def __init__(self, reason: str) -> None:
        self.last_output = time.monotonic()
        self._unread = f"cannot run: {reason}\n".encode()
        self._result = ExecResult(126, b"", self._unread, False, KilledBy.NONE, 0.0, 0.0)

    def cpu_s(self) -> float:
        return 0.0

    async def read(self) -> tuple[bytes, bytes]:
        unread, self._unread = self._unread, b""
        return b"", unread

    async def wait(self) -> ExecResult:
        return self._result

    async def kill(self, reason: KilledBy = KilledBy.CALLER) -> ExecResult:
        return self._result


def spawn(make: Callable[[], Program]) -> Program | Unstartable:
    """`make()`, with what the program's own arguments got wrong turned into a result."""
    try:
        return make()
    except ValueError as error:
        return Unstartable(str(error))
    except OSError as error:
        if error.errno == errno.E2BIG:
            return Unstartable("argument list too long")
        raise SandboxError(f"cannot start a program: {error}") from error
