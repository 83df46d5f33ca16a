"""structlog for every process: JSON lines on stderr (or text on a terminal), with run, group, rollout and step ids where bound.

A log line never raises. Stderr is a file on the disk that also holds journals and checkpoints, and a process that reports that this disk is full must
survive until it has space again. Lines that could not be written are counted (`lines_lost`, metric `penstock_log_lines_lost_total`). The first line
that can be written again is preceded by one with the number of missing lines.
"""

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO, cast

import structlog

from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.quote import quoted

LEVEL_VARIABLE: Final = "PENSTOCK_LOG_LEVEL"

bind = structlog.contextvars.bound_contextvars


_SECRETS = re.compile(r"(/s/|[Bb]earer |x-api-key: )[^\s/\"'\\]{8,}|(://[^\s:/@]+:)[^\s/@]+(?=@)")


def redact(line: str) -> str:
    """The line without session tokens in paths, bearer keys and passwords in URLs.

    >>> redact("POST http://127.0.0.1:80/s/abcdefghijklmnop/v1 to postgresql://penstock:swordfish@127.0.0.1/x")
    'POST http://127.0.0.1:80/s/***/v1 to postgresql://penstock:***@127.0.0.1/x'
    """
    return _SECRETS.sub(r"\1\2***", line)


class _Redacted:
    """A renderer that removes secrets from lines."""

    def __init__(self, renderer: structlog.typing.Processor) -> None:
        self._renderer = renderer

    def __call__(self, logger: object, name: str, event: structlog.typing.EventDict) -> str:
        return redact(str(self._renderer(logger, name, event)))


LONGEST: Final = 16_384
"""Characters of one value of a line: an error's text may be an agent's, of any length. The watchdog's stacks and most tracebacks are shorter."""


def _short(logger: object, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The event without the middle of values that are too long: a traceback's last line is the error. A cut never leaves a part of a secret."""
    half = LONGEST // 2
    for key, value in event.items():
        if isinstance(value, str) and len(value) > LONGEST:
            text = redact(value)
            left_out = max(0, len(text) - 2 * half)
            event[key] = f"{text[:half]} [{left_out:,} characters left out] {text[-half:]}"
    return event


_STAMP = structlog.processors.TimeStamper(fmt="iso", utc=True)


def _processors(renderer: structlog.typing.Processor) -> list[structlog.typing.Processor]:
    """From an event to a line. Tracebacks are plain: rich ones show all locals, secrets among them, and take seconds of the event loop's time."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _STAMP,
        structlog.processors.format_exc_info,
        _short,
        _Redacted(renderer),
    ]


class _Lines:
    """The sink of finished lines: a file, or nothing while the file cannot be written. Thread-safe; raises no error of the file."""

    def __init__(self, file: TextIO | None, missing: Callable[[int], str]) -> None:
        """`missing` formats the line with the number of lost lines. Without a `file`, as in a process without stderr, all are lost."""
        self._file = file
        self._missing = missing
        self._lock = threading.Lock()
        self._torn = False  # the file ends with a partial line
        self._unreported = 0
        self.lost = 0

    def msg(self, line: str) -> None:
        """Write one line."""
        with self._lock:
            prefix = "\n" if self._torn else ""
            if self._unreported:
                prefix += self._missing(self._unreported) + "\n"
            head = prefix.encode("utf-8", "backslashreplace")
            data = head + line.encode("utf-8", "backslashreplace") + b"\n"
            written = self._put(data)
            if written:
                self._torn = data[written - 1 : written] != b"\n"
            if written >= len(head):
                self._unreported = 0
            if written < len(data):
                self._unreported += 1
                self.lost += 1

    debug = info = warning = error = critical = msg  # structlog calls the level's name

    def _put(self, data: bytes) -> int:
        """Number of bytes written. Bypasses Python's buffer: data that a full disk refused must not stay there and fail the next write."""
        written = 0
        if self._file is None:
            return written
        try:
            try:
                number = self._file.fileno()
            except io.UnsupportedOperation:  # stderr of a test is in memory
                self._file.write(data.decode())
                self._file.flush()
                return len(data)
            while written < len(data):
                written += os.write(number, data[written:])
        except (OSError, ValueError):  # full, read-only, broken, a pipe without a reader; closed
            pass
        return written


_lines: _Lines | None = None


def lines_lost() -> int:
    """Number of lines of this process that could not be written since its log was configured."""
    return _lines.lost if _lines is not None else 0


def _threshold(level: LogLevel) -> int:
    """The number of $PENSTOCK_LOG_LEVEL, else of `level`. ValueError for a text that is not a level."""
    given = os.environ.get(LEVEL_VARIABLE) or level
    try:
        return logging.getLevelNamesMapping()[LogLevel(given.lower()).upper()]
    except ValueError:
        raise ValueError(
            f"{LEVEL_VARIABLE} is {quoted(given)}: write {', '.join(LogLevel)}, or unset it"
        ) from None


def configure(process: str, *, level: LogLevel = LogLevel.INFO, json: bool | None = None) -> None:
    """Set up this process's log; `process` is on every line. $PENSTOCK_LOG_LEVEL overrides `level`. ValueError, one sentence, if it is not one."""
    threshold = _threshold(level)
    stderr: TextIO | None = sys.stderr  # None if its descriptor was closed before the process started
    as_json = (stderr is None or not stderr.isatty()) if json is None else json
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=True)
    )

    def missing(lines: int) -> str:
        event = {"event": "log.lines_lost", "lines": lines, "level": "warning", "process": process}
        return str(renderer(None, "warning", _STAMP(None, "warning", event)))

    global _lines
    _lines = lines = _Lines(stderr, missing)
    structlog.configure(
        processors=_processors(renderer),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines carry `component=name`."""
    return cast(structlog.typing.FilteringBoundLogger, structlog.get_logger(component=name))  # noqa: TID251


@contextmanager
def quiet() -> Iterator[None]:
    """In a process that did not configure its log, such as a test: errors only, until the context ends. $PENSTOCK_LOG_LEVEL overrides the level.
    ValueError if it is not one."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(
        processors=_processors(structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty())),
        wrapper_class=structlog.make_filtering_bound_logger(_threshold(LogLevel.ERROR)),
    )
    try:
        yield
    finally:
        structlog.reset_defaults()
