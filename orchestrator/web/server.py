"""The dashboard as a process: it listens whether the data pool answers or not, and says where."""

import getpass
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
from aiohttp import web

from orchestrator.collector import keep_loaded
from orchestrator.config import Config
from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.embedded.layout import RunLayout
from orchestrator.log import get
from orchestrator.metrics import measured, ready
from orchestrator.progress import restartable
from orchestrator.web.app import Site, application
from orchestrator.web.database import Database
from orchestrator.web.keys import Keys, kept_token
from orchestrator.web.metrics import Metrics
from orchestrator.web.pulse import Pulse

log = get(__name__)


@dataclass(frozen=True, slots=True)
class WebSettings:
    """All that a dashboard needs. `url_file` gets the URL with its token once it listens; with port 0 the port that this file names is taken
    again if it is free, so that a browser's address stays right over restarts."""

    config: Config
    token_file: Path
    url_file: Path
    host: str = "127.0.0.1"
    port: int = 0
    hosts: tuple[str, ...] = ()
    layout: RunLayout | None = None
    said: Callable[[str], None] | None = None
    """Told the URL with its token, for a person at a terminal; it is never logged."""


async def serve(settings: WebSettings) -> None:
    """Serve until cancelled. ConfigurationError or ServiceError, one sentence, when it cannot listen or say where."""
    keys, metrics = Keys(kept_token(settings.token_file)), measured(Metrics)
    async with (
        Database(settings.config.services.database_url) as database,
        anyio.create_task_group() as tasks,
    ):
        pulse = Pulse(database, metrics)
        site = Site(
            run=settings.config.run.name,
            who=f"{whoever()} (dashboard)",
            config=settings.config,
            database=database,
            keys=keys,
            metrics=metrics,
            pulse=pulse,
            layout=settings.layout,
            hosts=frozenset((*settings.hosts, settings.host)),
        )
        runner = web.AppRunner(
            application(site), handler_cancellation=True, access_log=None, shutdown_timeout=0.5
        )
        await runner.setup()
        listener: socket.socket | None = None
        try:
            listener = listen(settings.host, settings.port, preferred=last_port(settings.url_file))
            await web.SockSite(runner, listener).start()
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            address = f"http://{host}:{listener.getsockname()[1]}"
            say(settings.url_file, f"{address}/?token={keys.token}\n")
            log.info("web.listening", url=address, run=site.run)
            if settings.said is not None:
                settings.said(f"{address}/?token={keys.token}")
            tasks.start_soon(restartable, "pulse", pulse.run)
            keep_loaded(seldom=True)
            with ready():
                await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):  # bounded: `shutdown_timeout`
                await runner.cleanup()
            if listener is not None:  # which the runner does not know yet, if it was cut off just before
                listener.close()


def listen(host: str, port: int, *, preferred: int = 0) -> socket.socket:
    """A listening socket. Port 0 takes `preferred` when it is free, else any. ConfigurationError when the port is taken."""
    for wanted in dict.fromkeys((port or preferred, port)):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, wanted))
            listener.listen(128)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            said = f"the dashboard cannot listen on {host}:{wanted} ({error.strerror}): stop what listens there or set web.port"
    raise ConfigurationError(said)


def last_port(url_file: Path) -> int:
    """The port that this dashboard had before a restart, 0 when unknown."""
    try:
        port = url_file.read_text(encoding="ascii").partition("/?")[0].rpartition(":")[2]
    except (OSError, UnicodeDecodeError):
        return 0
    return int(port) if port.isdigit() and int(port) < 65536 else 0


def say(file: Path, text: str) -> None:
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


def whoever() -> str:
    """Whoever started this process, as far as this machine knows: the token is theirs."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
