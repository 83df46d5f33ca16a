"""The dashboard as a process: it listens even if the data pool does not answer, and reports its address."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
from aiohttp import web

from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.contracts.languages import url_host
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.runtime.descriptors import raise_descriptor_limit
from orchestrator.runtime.gc_tuning import keep_loaded
from orchestrator.runtime.http_connections import BoundedRunner
from orchestrator.runtime.inherited import inherited
from orchestrator.runtime.liveness import restartable
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import measured, ready
from orchestrator.runtime.person import current_user
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import timeouts
from orchestrator.web.api import ROUTES
from orchestrator.web.app import application
from orchestrator.web.auth import Keys, kept_token
from orchestrator.web.change_feed import ChangeFeed
from orchestrator.web.database import Database
from orchestrator.web.metrics import WebMetrics
from orchestrator.web.site import Site

log = get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Settings of a dashboard. `url_file` gets the URL with its token once the dashboard listens; with port 0 the port in this file is
    reused if it is free, so that a browser's address stays valid over restarts."""

    config: Config
    token_file: Path
    url_file: Path
    host: str = "127.0.0.1"
    port: int = 0
    hosts: tuple[str, ...] = ()
    layout: RunLayout | None = None
    announce: Callable[[str], None] | None = None
    """Called with the URL and its token, for a person at a terminal; it is never logged."""


async def serve(settings: WebSettings) -> None:
    """Serve until cancelled. Raises ConfigurationError or ServiceError, one sentence, if it cannot listen or write the URL."""
    keys, metrics = Keys(kept_token(settings.token_file)), measured(WebMetrics)
    async with (
        Database(settings.config.services.database_url) as database,
        anyio.create_task_group() as tasks,
    ):
        changes = ChangeFeed(database=database, metrics=metrics)
        site = Site(
            run=settings.config.run.name,
            who=f"{current_user()} (dashboard)",
            config=settings.config,
            database=database,
            keys=keys,
            metrics=metrics,
            changes=changes,
            layout=settings.layout,
            hosts=frozenset((*settings.hosts, settings.host.lower())),
        )
        raise_descriptor_limit()
        runner = BoundedRunner(
            application(site, ROUTES),
            head_s=timeouts().request_head_s,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=0.5,
        )
        await runner.setup()
        listener: socket.socket | None = None
        try:
            listener = listen(settings.host, settings.port, preferred=last_port(settings.url_file))
            await web.SockSite(runner, listener).start()
            address = f"http://{url_host(settings.host)}:{listener.getsockname()[1]}"
            write_private(settings.url_file, f"{address}/?token={keys.token}\n")
            log.info("web.listening", url=address, run=site.run)
            if settings.announce is not None:
                settings.announce(f"{address}/?token={keys.token}")
            tasks.start_soon(restartable, "change_feed", changes.run)
            keep_loaded(infrequent=True)
            with ready():
                await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):  # bounded: `shutdown_timeout`
                await runner.cleanup()
            if listener is not None:  # the runner does not know it yet if it was cancelled just before
                listener.close()


def listen(host: str, port: int, *, preferred: int = 0) -> socket.socket:
    """A listening socket: the one that a supervisor holds for `port`, else a new one. Port 0 takes `preferred` if it is free, else any. Raises
    ConfigurationError if the port is taken."""
    if (held := inherited(port)) is not None:
        return held
    for candidate in dict.fromkeys((port or preferred, port)):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, candidate))
            listener.listen(128)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            problem = f"the dashboard cannot listen on {host}:{candidate} ({error.strerror}): stop what listens there or set web.port"
    raise ConfigurationError(problem)


def last_port(url_file: Path) -> int:
    """The port of this dashboard before a restart, 0 if unknown."""
    try:
        port = url_file.read_text(encoding="ascii").partition("/?")[0].rpartition(":")[2]
    except (OSError, UnicodeDecodeError):
        return 0
    return int(port) if port.isascii() and port.isdigit() and int(port) < 65536 else 0


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    try:
        file.unlink(missing_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(text)
    except OSError as error:
        raise ServiceError(
            f"the dashboard cannot say in {file} where it listens: {error}; make room there"
        ) from error
