"""structlog for every process: JSON lines on stderr (or text on a terminal), with run, group, rollout and step ids where bound."""

import logging
import os
import re
import sys
from typing import cast

import structlog

bind = structlog.contextvars.bound_contextvars


_SECRETS = re.compile(r"(/s/|[Bb]earer |x-api-key: )[^\s/\"'\\]{8,}|(://[^\s:/@]+:)[^\s/@]+(?=@)")


def redact(line: str) -> str:
    """The line without session tokens in paths, bearer keys and passwords in URLs.

    >>> redact("POST http://127.0.0.1:80/s/abcdefghijklmnop/v1 to postgresql://penstock:swordfish@127.0.0.1/x")
    'POST http://127.0.0.1:80/s/***/v1 to postgresql://penstock:***@127.0.0.1/x'
    """
    return _SECRETS.sub(r"\1\2***", line)


class _Redacted:
    """A renderer whose lines hold no secrets."""

    def __init__(self, renderer: structlog.typing.Processor) -> None:
        self._renderer = renderer

    def __call__(self, logger: object, name: str, event: structlog.typing.EventDict) -> str:
        return redact(str(self._renderer(logger, name, event)))


def configure(process: str, *, level: str | None = None, json: bool | None = None) -> None:
    """Set up this process's log; `process` is on every line. $PENSTOCK_LOG_LEVEL overrides the level (default info)."""
    name = (level or os.environ.get("PENSTOCK_LOG_LEVEL") or "info").upper()
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=True)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _Redacted(renderer),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, name, logging.INFO)),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines carry `component=name`."""
    return cast(structlog.typing.FilteringBoundLogger, structlog.get_logger(component=name))
