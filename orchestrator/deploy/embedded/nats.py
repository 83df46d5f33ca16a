"""The embedded NATS server as one async context manager, and the checks that any NATS server must pass.

    async with EmbeddedNats(run.nats) as server:
        await nats.connect(server.url)

A server that already runs on the directory is adopted, and left running at the end. A supervised server is started from
`nats_spec` instead.
"""

import json
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from nats.errors import Error as NatsError

from orchestrator.bus.client import NatsClient
from orchestrator.deploy.embedded.nats_server import (
    NEEDED_PAYLOAD,
    NatsHome,
    parse_version,
    prepare_nats,
    refuse_old,
)
from orchestrator.deploy.embedded.service import EmbeddedService
from orchestrator.runtime.peer import peer_user
from orchestrator.settings.timeouts import timeouts

DEFAULT_PORT = 4222
_MAX_INFO = 1 << 20
_ENDED = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.IncompleteRead, anyio.DelimiterNotFound)


class EmbeddedNats(EmbeddedService[NatsHome]):
    """Serves one JetStream directory while the context is open; it starts within 0.05 s."""

    called = "the NATS server"
    endings = ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        log: Path | None = None,
        start_timeout_s: float = 20.0,
    ) -> None:
        super().__init__(data_dir, log=log or data_dir / "nats.log", start_timeout_s=start_timeout_s)
        self._port = port

    def _prepare(self) -> NatsHome:
        return prepare_nats(self._data_dir, port=self._port)

    async def _ready(self) -> bool:
        return await serves(self.url, self.home.owner)


async def serves(url: str, owner: int | None = None) -> bool:
    """The ready check: True if a server (of the user `owner`, if given) answers and passes `check_server`. Raises ValueError if it answers and
    fails."""
    parsed = urlsplit(url)
    try:
        # A client's first failed attempt takes two seconds, a bare connection no time.
        probe = await anyio.connect_tcp(parsed.hostname or "", parsed.port or DEFAULT_PORT)
        await probe.aclose()
        await check_server(url, connect_timeout_s=2, owner=owner)
    except (OSError, TimeoutError, NatsError):
        return False
    return True


async def check_server(url: str, *, connect_timeout_s: int = 5, owner: int | None = None) -> tuple[int, ...]:
    """Connects once and returns the server's version, e.g. (2, 15, 0). A server of another user than `owner` (None: any) gets no login.

    Raises ValueError if the server is older than 2.10, accepts less than 1 MB per message, or has no JetStream; OSError, TimeoutError or
    nats.errors.Error if it cannot be reached.
    """
    client = NatsClient(owner)
    try:
        await client.connect(url, allow_reconnect=False, connect_timeout=connect_timeout_s, error_cb=_quiet)
        parsed = urlsplit(url)
        address = f"{parsed.hostname}:{parsed.port or DEFAULT_PORT}"
        version = parse_version(str(client.connected_server_version))
        refuse_old(version, f"at {address}", "upgrade it")
        if client.max_payload < NEEDED_PAYLOAD:
            raise ValueError(
                f"the NATS server at {address} accepts {client.max_payload} bytes per message, but {NEEDED_PAYLOAD} are needed; "
                "set max_payload: 8MB in its configuration"
            )
        try:
            await client.jetstream().account_info()
        except NatsError as error:
            raise ValueError(
                f"the NATS server at {address} has no JetStream; start it with --jetstream"
            ) from error
        return version
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class Announced:
    """The first line of a NATS server. `name`: empty if none can be read; `user`: who accepted the connection, None if not on this machine."""

    name: str = ""
    user: int | None = None


async def announced(url: str) -> Announced:
    """The greeting of the program at `url`. It gets no login: a server speaks first, and another program may have taken its port."""
    parsed = urlsplit(url)
    try:
        with anyio.fail_after(timeouts().bus_connect_s):
            async with await anyio.connect_tcp(parsed.hostname or "", parsed.port or DEFAULT_PORT) as stream:
                line = await BufferedByteReceiveStream(stream).receive_until(b"\r\n", _MAX_INFO)
                own = stream.extra(SocketAttribute.raw_socket)
                user = (
                    peer_user(own.getsockname(), own.getpeername()) if own.family == socket.AF_INET else None
                )
        name = json.loads(line.removeprefix(b"INFO ")).get("server_name", "")
    except (OSError, TimeoutError, ValueError, AttributeError, RecursionError, *_ENDED):
        return Announced()
    return Announced(name if isinstance(name, str) else "", user)


async def _quiet(_: Exception) -> None:
    """Ignore client errors: a failed attempt is a result of the check, not an event to print."""
