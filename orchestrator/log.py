"""structlog for every process: JSON lines on stderr (or text on a terminal), with run, group, rollout and step ids where bound."""

import logging
import os
import sys
from typing import cast

import structlog

bind = structlog.contextvars.bound_contextvars


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
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, name, logging.INFO)),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines carry `component=name`."""
    return cast(structlog.typing.FilteringBoundLogger, structlog.get_logger(component=name))
