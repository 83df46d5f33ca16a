"""Standard output and standard error of a process whose reader may go away.

    guard()                      # first in `main`: the loss of a reader ends nothing
    ends_with_reader()           # for a command that only prints: it ends quietly instead
    check_reader()               # where such a command waits for more to print

`penstock up 2>&1 | tee log` loses its reader at Ctrl-C: the signal goes to the whole foreground group, and `tee` dies first. Every later write
raises BrokenPipeError (EIO if a terminal was closed), including the write of the sentence that explains why a process ends. A guarded stream
continues to /dev/null from the first error on. Standard error also swallows every other error of a write, such as a full disk. Standard output
raises those once: it may be the product of a command.
"""

import contextlib
import errno
import io
import os
import select
import sys
from typing import Any, TextIO

STDIN, STDOUT, STDERR = 0, 1, 2
GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ECONNRESET})
"""Errors of a write without a reader: a closed pipe, a closed terminal, a closed descriptor, a closed socket."""


class ReaderGone(Exception):
    """The reader of standard output has gone away, and the command only prints."""


class _Guarded(io.FileIO):
    """The descriptor of a standard stream. `forgiving`: every error of a write is swallowed, not only the loss of the reader."""

    def __init__(self, number: int, *, forgiving: bool) -> None:
        super().__init__(number, "wb", closefd=False)
        self._forgiving = forgiving
        self.ends = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _to_nowhere(self.fileno())  # this includes the buffer's content, which is written again at exit
            if error.errno not in GONE and not self._forgiving:
                raise OSError(error.errno, f"standard output takes no more: {error.strerror}") from None
            if error.errno in GONE and self.ends:
                raise ReaderGone("the reader of standard output has gone away") from None
        return len(data)


def _to_nowhere(number: int) -> None:
    """Redirect the descriptor to /dev/null from now on."""
    with contextlib.suppress(OSError):
        null_device = os.open(os.devnull, os.O_RDWR)
        if null_device != number:
            os.dup2(null_device, number)
            os.close(null_device)


def _opened(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _stream(found: TextIO | None, number: int, *, forgiving: bool) -> TextIO:
    """A guarded stream like the given one."""
    raw = _Guarded(number, forgiving=forgiving)
    encoding = found.encoding if found is not None else "utf-8"
    errors = (found.errors if found is not None else None) or "backslashreplace"
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, encoding=encoding, errors=errors, line_buffering=number == STDERR or raw.isatty()
    )


_stdout: _Guarded | None = None


def guard() -> None:
    """Guard the standard streams of this process. A stream that was closed before the start reads or writes /dev/null, so that no later
    file gets its descriptor. Streams that were replaced (by a test) stay unchanged."""
    global _stdout
    for number in (STDIN, STDOUT, STDERR):
        if not _opened(number):
            _to_nowhere(number)
    if sys.stdin is None:
        sys.stdin = open(STDIN, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        _flush(sys.stdout)
        sys.stdout = _stream(sys.stdout, STDOUT, forgiving=False)
        raw = sys.stdout.buffer.raw  # type: ignore[attr-defined]
        assert isinstance(raw, _Guarded)
        _stdout = raw
    if sys.stderr is sys.__stderr__:
        _flush(sys.stderr)
        sys.stderr = _stream(sys.stderr, STDERR, forgiving=True)


def _flush(stream: TextIO | None) -> None:
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def ends_with_reader() -> None:
    """From now on, a write to standard output without a reader raises `ReaderGone`: this command only prints."""
    if _stdout is not None:
        _stdout.ends = True


def check_reader() -> None:
    """Raise `ReaderGone` if standard output has lost its reader: a command that waits between its lines would not notice without a write."""
    if _stdout is None or not _stdout.ends:
        return
    waiting = select.poll()
    waiting.register(_stdout.fileno(), 0)  # a lost reader is always reported
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in waiting.poll(0)):
        _to_nowhere(_stdout.fileno())
        raise ReaderGone("the reader of standard output has gone away")
