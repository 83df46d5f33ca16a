"""A Unix socket on this host that leads to the sandbox routes of a gateway on another host: bytes pass through unread.

Sandboxes have no network, so the runner relays. A connection that the gateway does not accept is closed at once: inside the sandbox this looks
like an absent gateway, as it would on the same host. The gateway ends connections that send nothing, and these end here with it. Above
`most_connections()` of them, a new one closes the oldest without a request after the last response; if there is none, the new
one is closed. So no program keeps the others of this host from the gateway, or takes the descriptors of the runner.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.abc

from orchestrator.bus.feed import in_background
from orchestrator.runtime import accepting
from orchestrator.runtime.http_connections import most_connections
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

BACKLOG = 1024  # a Unix socket whose backlog is full turns clients away at once
END_S = 1.0

Target = Callable[[], tuple[str, int] | None]
"""The current target of connections: host and port; None: no target."""


@asynccontextmanager
async def bridged(path: Path, target: Target, *, most: int | None = None) -> AsyncIterator[None]:
    """Serve a socket at `path` while the context is open. Any user may connect (the token is the key). Its directory must exist. `most`: connections
    at a time, half of `most_connections()` by default, as each has two descriptors."""
    path.unlink(missing_ok=True)
    listener = await anyio.create_unix_listener(path, mode=0o666, backlog=BACKLOG)
    bridge = _Bridge(target, most_connections() // 2 if most is None else most)
    try:
        async with in_background(partial(accepting.serve, listener, bridge.serve)):
            try:
                yield
            finally:
                await bridge.end()
    finally:
        await listener.aclose()
        path.unlink(missing_ok=True)


class _Connection:
    """`asks`: whether the client sent something after the last bytes of the gateway."""

    def __init__(self, client: anyio.abc.SocketStream) -> None:
        self.asks = False
        self.client = client
        self._ends = [client]
        self._is_over = False

    def leads_to(self, server: anyio.abc.SocketStream) -> None:
        """Note the other end, and end it if the connection is over."""
        self._ends.append(server)
        if self._is_over:
            self.end()

    def end(self) -> None:
        """Let both directions read an end. What was sent still arrives.

        A receiving task is not cancelled for it: where bytes arrive at the same moment, anyio's callback would raise InvalidStateError."""
        self._is_over = True
        for stream in self._ends:
            with suppress(OSError):
                stream.extra(anyio.abc.SocketAttribute.raw_socket).shutdown(socket.SHUT_RDWR)


class _Bridge:
    """The connections of one socket, the oldest first."""

    def __init__(self, target: Target, most: int) -> None:
        self._target, self._most = target, most
        self._open: dict[_Connection, None] = {}
        self._served = 0
        self._ended: anyio.Event | None = None

    async def serve(self, client: anyio.abc.SocketStream) -> None:
        """Serve one connection to its end."""
        async with client:
            target = self._target()
            if target is None or self._ended or not self._has_room():
                return
            connection = _Connection(client)
            self._open[connection] = None
            self._served += 1
            try:
                await _pass(connection, target)
            finally:
                self._open.pop(connection, None)
                self._served -= 1
                if self._ended and not self._served:
                    self._ended.set()

    async def end(self) -> None:
        """End all connections. One that is still being made is left to be cancelled after `END_S`."""
        self._ended = anyio.Event()
        for connection in list(self._open):
            connection.end()
        with anyio.move_on_after(END_S, shield=True):
            if self._served:
                await self._ended.wait()

    def _has_room(self) -> bool:
        """Whether there is room for another connection, also because an older one is closed."""
        if len(self._open) < self._most:
            return True
        resting = next((each for each in self._open if not each.asks), None)
        if resting is None:
            return False
        del self._open[resting]
        resting.end()
        return True


async def _pass(connection: _Connection, target: tuple[str, int]) -> None:
    try:
        with anyio.fail_after(timeouts().gateway_connect_s):
            server = await anyio.connect_tcp(*target)
    except (OSError, TimeoutError) as error:
        log.info("bridge.refused", host=target[0], port=target[1], error=str(error) or "no answer")
        return
    async with server, anyio.create_task_group() as tasks:
        connection.leads_to(server)

        async def answers() -> None:
            await _copy(server, connection.client, connection, asks=False)
            connection.end()  # a gateway that has ended a connection takes no more of it

        tasks.start_soon(answers)
        tasks.start_soon(partial(_copy, connection.client, server, connection, asks=True))


async def _copy(
    source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream, connection: _Connection, *, asks: bool
) -> None:
    """Forward bytes until `source` ends, then send EOF to `sink`. A broken connection ends both directions."""
    try:
        async for chunk in source:
            connection.asks = asks
            await sink.send(chunk)
        await sink.send_eof()
    except (OSError, anyio.BrokenResourceError):
        connection.end()
