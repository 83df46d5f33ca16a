"""The connection to NATS: dialled, watched, dialled again for ever with jitter.

The client's own reconnection is switched off. After some errors it gives up for good, and its subscriptions may
outlive a reconnection without ever receiving again; here every connection is a new client with new subscriptions,
and work on a lost connection is cancelled at once instead of waiting for its time-out.

Of several servers of one cluster (`urls_of`) any will do: each dial tries the next one, the first a random one.
"""

import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import nats
import nats.errors
import structlog
from nats.js import JetStreamContext
from nats.js.errors import ServiceUnavailableError

from orchestrator.bus.base import BusUnavailable, UnfitServer
from orchestrator.bus.subjects import MIN_MAX_PAYLOAD_BYTES
from orchestrator.clock import clock
from orchestrator.metrics import BusMetrics, measured
from orchestrator.progress import looping

log = structlog.get_logger(__name__)

OLDEST_SERVER = (2, 10)  # older ones silently ignore parts of the configuration
FIRST_WAIT_S = 0.05
LEADERLESS_S = 0.25  # a cluster that has lost a leader answers nothing until it has another
_LOOK_AT_CLIENT_S = 0.2


class LinkLost(Exception):
    """The connection broke while it was in use: wait for the next one and do the work again."""


@dataclass(slots=True, eq=False)
class Connection:
    """One connected client, until it is lost."""

    client: Any  # nats.NATS
    js: JetStreamContext
    max_payload: int
    lost: anyio.Event = field(default_factory=anyio.Event)
    users: set[anyio.CancelScope] = field(default_factory=set)

    def lose(self) -> None:
        self.lost.set()
        for scope in self.users:
            scope.cancel()

    async def until_lost(self) -> None:
        """Wait for the end. The client does not always announce its own (a failing last write keeps it from that)."""
        while not self.lost.is_set():
            with anyio.move_on_after(_LOOK_AT_CLIENT_S):
                await self.lost.wait()
            if self.client.is_closed:
                self.lose()


class Link:
    """Keeps one connection. `run` must be running beside the users (see `NatsBus.connect`)."""

    def __init__(self, url: str, name: str, on_up: Callable[[], None]) -> None:
        urls = urls_of(url)
        self._url = itertools.cycle(random.sample(urls, len(urls)))
        self._servers = len(urls)
        self._places = " or ".join(map(_place, urls))
        self._name = name
        self._on_up = on_up  # called after each reconnection, not after the first connection
        self._current: Connection | None = None
        self._up = anyio.Event()
        self.max_payload = MIN_MAX_PAYLOAD_BYTES  # of the server last connected

    @property
    def current(self) -> Connection | None:
        """The connection, or None while there is none."""
        return self._current

    async def open(self, patience_s: float) -> None:
        """Connect for the first time. Raises UnfitServer at once and BusUnavailable after ``patience_s`` seconds."""
        refused: Exception | None = None
        with anyio.move_on_after(patience_s):
            for delay in delays():
                try:
                    await self._dial_any()
                    return
                except (OSError, nats.errors.Error) as error:
                    refused = error
                await anyio.sleep(delay)
        if isinstance(refused, ServiceUnavailableError):
            raise UnfitServer(
                f"the NATS server at {self._places} runs without JetStream: start it with -js and a store directory"
            )
        raise BusUnavailable(
            f"NATS does not answer at {self._places} ({str(refused or '') or 'no reply'}): start it there, or set another nats.url"
        )

    async def run(self) -> None:
        """Dial again whenever the connection is lost."""
        with looping("bus.link") as loop:
            while True:
                assert self._current is not None
                loop.rests("the end of the connection")
                await self._current.until_lost()
                loop.works("a connection", on="nats")
                self._current, self._up = None, anyio.Event()
                measured(BusMetrics).connected.set(0)
                log.warning("nats_lost", server=self._places)
                for attempt, delay in enumerate(delays()):
                    try:
                        await self._dial_any()
                        break
                    except (OSError, nats.errors.Error) as error:
                        if attempt % 10 == 0:
                            log.warning("nats_away", server=self._places, attempt=attempt, error=str(error))
                    await anyio.sleep(delay)
                log.info("nats_back", server=self._places)
                self._on_up()

    async def close(self) -> None:
        """Close the connection. Bounded: what cannot be said in two seconds is not said."""
        connection = self._current
        if connection is not None:
            with anyio.move_on_after(2, shield=True):
                await connection.client.close()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection]:
        """Wait for a connection and use it; LinkLost if it breaks before the body is done."""
        while (connection := self._current) is None or connection.lost.is_set():
            await self._up.wait()
            await anyio.lowlevel.checkpoint()  # lost a moment ago: let `run` notice
        with anyio.CancelScope() as scope:
            connection.users.add(scope)
            try:
                yield connection
            finally:
                connection.users.discard(scope)
        if scope.cancelled_caught:
            raise LinkLost

    async def _dial_any(self) -> None:
        """Try every server once. Raises as the last one did."""
        for left in reversed(range(self._servers)):
            try:
                return await self._dial(next(self._url))
            except (OSError, nats.errors.Error) as error:
                if not left:
                    raise
                log.debug("nats_refused", error=repr(error))

    async def _dial(self, url: str) -> None:
        client = nats.NATS()
        connection = Connection(client, client.jetstream(timeout=clock().bus_request_s), 0)

        async def closed() -> None:
            connection.lose()

        async def failed(error: Exception) -> None:
            log.debug("nats_error", error=repr(error))

        try:
            await client.connect(
                url,
                name=self._name,
                allow_reconnect=False,
                max_reconnect_attempts=1,  # of one call; the waiting in between is ours
                reconnect_time_wait=0,
                connect_timeout=clock().bus_connect_s,
                ping_interval=clock().bus_ping_s,
                closed_cb=closed,
                error_cb=failed,
            )
            connection.max_payload = self.max_payload = client.max_payload
            await _check_fit(connection, _place(url), alone=self._servers == 1)
        except BaseException:
            with anyio.move_on_after(2, shield=True):
                await client.close()
            raise
        self._current = connection
        measured(BusMetrics).connected.set(1)
        measured(BusMetrics).connections.inc()
        self._up.set()


def delays() -> Iterator[float]:
    """Seconds to wait before the next attempt: doubling up to `clock.bus_redial_s`, each with jitter, for ever."""
    longest_s = clock().bus_redial_s
    for attempt in itertools.count():
        yield min(longest_s, FIRST_WAIT_S * 2 ** min(attempt, 16)) * random.uniform(0.5, 1.0)


async def _check_fit(connection: Connection, place: str, *, alone: bool) -> None:
    """Refuse with one sentence a server that would lose or cut messages. One of a cluster (not `alone`) need not know who leads it."""
    version = connection.client.connected_server_version
    if (version.major, version.minor) < OLDEST_SERVER:
        raise UnfitServer(
            f"the NATS server at {place} is version {version.major}.{version.minor}.{version.patch}, and "
            f"{OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} or newer is needed: install a newer nats-server"
        )
    if connection.max_payload < MIN_MAX_PAYLOAD_BYTES:
        raise UnfitServer(
            f"the NATS server at {place} takes messages of at most {connection.max_payload:,} bytes, and "
            f"{MIN_MAX_PAYLOAD_BYTES:,} are needed: raise max_payload in its configuration"
        )
    with anyio.move_on_after(None if alone else LEADERLESS_S):
        await connection.js.account_info()  # raises ServiceUnavailableError without JetStream


def urls_of(named: str) -> list[str]:
    """The servers of one cluster as people name them: URLs with commas between them."""
    return [url.strip() for url in named.split(",") if url.strip()]


def _place(url: str) -> str:
    """The host and port of a URL, without credentials."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    return f"{parts.hostname}:{parts.port or 4222}"
