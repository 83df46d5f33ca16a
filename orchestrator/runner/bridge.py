"""A Unix socket on this host that leads to the sandbox routes of a gateway on another host: bytes pass through unread.

Sandboxes have no network, so the runner relays. A connection that the gateway does not accept is closed at once: inside the sandbox this looks
like an absent gateway, as it would on the same host. The gateway ends connections that are too many or send nothing, and these end here with it.
A quarter of the runner's descriptors is the limit of one socket; above it, new connections are closed at once.
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
from orchestrator.runtime.descriptors import descriptor_limit
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
    at a time, each with two descriptors; by default a quarter of the descriptors that this process may open."""
    path.unlink(missing_ok=True)
    listener = await anyio.create_unix_listener(path, mode=0o666, backlog=BACKLOG)
    bridge = _Bridge(target, descriptor_limit() // 8 if most is None else most)
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
    """The two ends of a connection."""

    def __init__(self, client: anyio.abc.SocketStream) -> None:
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
    """The connections of one socket."""

    def __init__(self, target: Target, most: int) -> None:
        self._target, self._most = target, most
        self._open: set[_Connection] = set()
        self._ended: anyio.Event | None = None

    async def serve(self, client: anyio.abc.SocketStream) -> None:
        """Serve one connection to its end."""
        async with client:
            target = self._target()
            if target is None or self._ended or len(self._open) >= self._most:
                return
            connection = _Connection(client)
            self._open.add(connection)
            try:
                await _pass(connection, target)
            finally:
                self._open.discard(connection)
                if self._ended and not self._open:
                    self._ended.set()

    async def end(self) -> None:
        """End all connections. One that is still being made is left to be cancelled after `END_S`."""
        self._ended = anyio.Event()
        for connection in self._open:
            connection.end()
        with anyio.move_on_after(END_S, shield=True):
            if self._open:
                await self._ended.wait()


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
            await _copy(server, connection.client, connection)
            connection.end()  # a gateway that has ended a connection takes no more of it

        tasks.start_soon(answers)
        tasks.start_soon(_copy, connection.client, server, connection)


async def _copy(
    source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream, connection: _Connection
) -> None:
    """Forward bytes until `source` ends, then send EOF to `sink`. A broken connection ends both directions."""
    try:
        async for chunk in source:
            await sink.send(chunk)
        await sink.send_eof()
    except (OSError, anyio.BrokenResourceError):
        connection.end()
