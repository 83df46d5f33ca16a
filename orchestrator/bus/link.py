"""The connection to NATS: dialled, watched, and dialled again without limit, with jitter.

The client's own reconnection is switched off. It stops for good after some errors, and its subscriptions may
survive a reconnection without ever receiving again. Here every connection is a new client with new subscriptions,
and work on a lost connection is cancelled at once instead of waiting for its time-out.

Any server of a cluster (`urls_of`) can serve: each dial tries the next server, and the first dial a random server. The embedded server may change its
port: each dial reads its address again (`address_file`).
"""

import errno
import itertools
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anyio
import anyio.lowlevel
import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import ServiceUnavailableError

from orchestrator.bus.address_file import named_file, read_address
from orchestrator.bus.base import BusUnavailable, UnfitServer
from orchestrator.bus.client import NatsClient, answered
from orchestrator.bus.subjects import MIN_MAX_PAYLOAD_BYTES
from orchestrator.contracts.quote import quoted
from orchestrator.runtime.backoff import backoff
from orchestrator.runtime.liveness import track_loop
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import BusMetrics, measured
from orchestrator.runtime.unreachable import cause_of, origin_of
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

OLDEST_SERVER = (2, 10)  # older servers silently ignore parts of the configuration
FIRST_WAIT_S = 0.05
LEADERLESS_S = 0.25  # a cluster that has lost a leader answers nothing until it elects another
_LOOK_AT_CLIENT_S = 0.2
_LOGIN_REFUSED = "Authorization Violation"  # as the server says it; the client has no error of its own for it


class LinkLost(Exception):
    """The connection broke while it was in use: wait for the next connection and repeat the work."""


@dataclass(slots=True, eq=False, kw_only=True)
class Connection:
    """One connected client, until it is lost."""

    client: NatsClient
    js: JetStreamContext
    max_payload: int
    lost: anyio.Event = field(default_factory=anyio.Event)
    users: set[anyio.CancelScope] = field(default_factory=set)

    def lose(self) -> None:
        self.lost.set()
        for scope in self.users:
            scope.cancel()

    async def until_lost(self) -> None:
        """Wait for the end. The client does not always announce its end (a failing last write prevents it)."""
        while not self.lost.is_set():
            with anyio.move_on_after(_LOOK_AT_CLIENT_S):
                await self.lost.wait()
            if self.client.is_closed:
                self.lose()


class Link:
    """Keeps one connection. `run` must run while the link is used (see `NatsBus.connect`)."""

    def __init__(self, url: str, name: str, on_up: Callable[[], None]) -> None:
        urls = urls_of(url)
        if not urls:
            raise UnfitServer(_NO_SERVER)
        self._url = itertools.cycle(random.sample(urls, len(urls)))
        self._servers = len(urls)
        self._named = url
        self._file = named_file(url)
        # Why the client could not connect: the error that it raises does not say.
        self._last_error: Exception | None = None
        self._has_login = any(map(login_of, urls))
        self._name = name
        self._on_up = on_up  # called after each reconnection, not after the first connection
        self._current: Connection | None = None
        self._up = anyio.Event()
        self.max_payload = MIN_MAX_PAYLOAD_BYTES  # of the latest server

    @property
    def current(self) -> Connection | None:
        """The connection, or None while there is none."""
        return self._current

    @property
    def _places(self) -> str:
        return places_of(self._named)

    async def open(self, patience_s: float) -> None:
        """Connect for the first time. Raises UnfitServer at once, also for a refused login, and BusUnavailable after ``patience_s`` seconds."""
        refused: Exception | None = None
        with anyio.move_on_after(patience_s):
            for delay in delays():
                try:
                    await self._dial_any()
                    return
                except (OSError, nats.errors.Error) as error:
                    if _LOGIN_REFUSED in str(error):
                        raise UnfitServer(self._login_refused()) from None
                    if (why := _tls_refused(self._last_error, self._places)) is not None:
                        raise UnfitServer(why) from None
                    refused = error
                await anyio.sleep(delay)
        if isinstance(refused, ServiceUnavailableError):
            raise UnfitServer(
                f"the NATS server at {self._places} runs without JetStream: start it with -js and a store directory"
            )
        raise BusUnavailable(
            f"NATS does not answer at {self._places} ({self._cause(refused)}): {self._advice()}"
        )

    def _advice(self) -> str:
        if (origin := origin_of(self._named)) is not None:
            return origin.advice()
        return "start it (`penstock up -c RUN` does, where it is embedded) or check services.nats_url and NATS_URL"

    def _cause(self, error: Exception | None) -> str:
        if isinstance(error, nats.errors.NoServersError):
            error = self._last_error or error
        if error is None or isinstance(error, nats.errors.TimeoutError):
            return "no reply"
        return cause_of(error) or str(error).removeprefix("nats: ") or "no reply"

    def _login_refused(self) -> str:
        origin = origin_of(self._named)
        where = "NATS_URL" if origin is None else origin.source
        if self._has_login:
            return (
                f"the NATS server at {self._places} refuses the login in {where}: check its user and password, or its token, "
                "in which / : @ and % are written %2F, %3A, %40 and %25"
            )
        return f"the NATS server at {self._places} requires a login, and {where} has none: write user:password@ or token@ before the host"

    async def run(self) -> None:
        """Dial again whenever the connection is lost."""
        with track_loop("bus.link") as loop:
            while True:
                assert self._current is not None
                loop.idle("the end of the connection")
                await self._current.until_lost()
                loop.busy("a connection", on="nats")
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
        """Close the connection. Unsent data is dropped after two seconds."""
        connection = self._current
        if connection is not None:
            with anyio.move_on_after(2, shield=True):
                await connection.client.close()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection]:
        """Wait for a connection and use it; LinkLost if it breaks before the body is done."""
        while (connection := self._current) is None or connection.lost.is_set():
            await self._up.wait()
            await anyio.lowlevel.checkpoint()  # just lost: let `run` notice
        with anyio.CancelScope() as scope:
            connection.users.add(scope)
            try:
                yield connection
            finally:
                connection.users.discard(scope)
        if scope.cancelled_caught:
            raise LinkLost

    async def _dial_any(self) -> None:
        """Try every server once. Raises the error of the last server."""
        for attempts_left in reversed(range(self._servers)):
            try:
                if self._file is not None:
                    return await self._dial(*_address_in(self._file))
                return await self._dial(next(self._url), None)
            except (OSError, nats.errors.Error) as error:
                if not attempts_left:
                    raise
                log.debug("nats_refused", error=repr(error))

    async def _dial(self, url: str, owner: int | None) -> None:
        client = NatsClient(owner)
        connection = Connection(
            client=client, js=client.jetstream(timeout=timeouts().bus_request_s), max_payload=0
        )

        async def closed() -> None:
            connection.lose()

        async def failed(error: Exception) -> None:
            self._last_error = error
            log.debug("nats_error", error=repr(error))

        try:
            await client.connect(
                url,
                **login_of(url),
                name=self._name,
                allow_reconnect=False,
                max_reconnect_attempts=1,  # per call; we wait between calls
                reconnect_time_wait=0,
                connect_timeout=timeouts().bus_connect_s,
                ping_interval=timeouts().bus_ping_s,
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
    """Seconds to wait before each next attempt, without end: see `backoff`."""
    return backoff(FIRST_WAIT_S, timeouts().bus_redial_s)


def _tls_refused(error: Exception | None, place: str) -> str | None:
    """Why TLS with the server cannot succeed as things stand, or None."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the NATS server at {place} is refused ({error.verify_message}): name the file of its certificate authority in "
            "SSL_CERT_FILE, and the server by a name that the certificate has"
        )
    if isinstance(error, ssl.SSLError) and "CERTIFICATE_REQUIRED" in str(error.reason):
        return f"the NATS server at {place} requires a certificate of its clients, and Penstock has none: remove verify = true there, and use a login"
    return None


async def _check_fit(connection: Connection, place: str, *, alone: bool) -> None:
    """Refuse with one sentence a server that would lose or cut messages. A server in a cluster (not `alone`) may not know its leader yet."""
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
        await answered(connection.js.account_info)  # raises ServiceUnavailableError without JetStream


SCHEMES = ("nats", "tls", "ws", "wss")
_NO_SERVER = "NATS_URL names no server: write nats://host:4222"


def urls_of(named: str) -> list[str]:
    """The servers of one cluster, written as comma-separated URLs, or the present one of a file (`address_file`); none for "". An invalid URL, or a
    file that cannot be read, raises UnfitServer with one sentence that contains no login."""
    if (file := named_file(named)) is not None:
        try:
            return [_address_in(file)[0]]
        except OSError as error:
            raise UnfitServer(
                f"the file {file}, which NATS_URL names, cannot be read ({error.strerror}): `penstock up` writes it"
            ) from None
    urls = [url.strip() for url in named.split(",") if url.strip()]
    if named and not urls:
        raise UnfitServer(_NO_SERVER)
    for url in urls:
        _check(url)
    if len({urlsplit(url if "//" in url else f"//{url}").scheme in ("ws", "wss") for url in urls}) > 1:
        raise UnfitServer("NATS_URL mixes ws:// with other servers: name one kind")
    return urls


def _check(url: str) -> None:
    """Raise UnfitServer unless `url` names one server."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        fits = (parts.scheme or "nats") in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, an unclosed bracket
        fits = False
    if not fits:
        raise UnfitServer(
            f"NATS_URL is not a URL of NATS (it begins with {quoted(url.partition(':')[0], 20)}): use nats://host:4222, tls://, ws:// or wss://, "
            "with user:password@ or token@ before the host, where / : and @ are written %2F, %3A and %40"
        )
    if parts.query or parts.fragment or parts.path.strip("/"):
        raise UnfitServer(
            f"the NATS URL of {_place(url)} has something behind its port, which would be ignored: take it out"
        )


def _address_in(file: Path) -> tuple[str, int]:
    """`read_address`. OSError also for a file whose content does not name one server: its starter may write it again."""
    try:
        url, owner = read_address(file)
    except ValueError:
        raise OSError(errno.EINVAL, "it is not UTF-8 text") from None
    if not url:
        raise OSError(errno.EINVAL, "it is empty")
    try:
        _check(url)
    except UnfitServer:
        raise OSError(errno.EINVAL, "its content is not the URL of one server") from None
    return url, owner


def places_of(named: str) -> str:
    """host:port of each server, for messages."""
    try:
        return " or ".join(map(_place, urls_of(named)))
    except UnfitServer:
        if (file := named_file(named)) is not None:
            return f"the address in {file}"
        raise


def login_of(url: str) -> dict[str, str]:
    """The login in a URL, decoded, as arguments of the client (the client does not decode it)."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    if parts.username is None:
        return {}
    if parts.password is None:
        return {"token": unquote(parts.username)}
    return {"user": unquote(parts.username), "password": unquote(parts.password)}


def _place(url: str) -> str:
    """The host and port of a URL, without credentials."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    return f"{parts.hostname}:{parts.port or 4222}"
