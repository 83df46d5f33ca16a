"""A Unix socket on this host that leads to the sandbox routes of a gateway on another host: bytes pass through unread.

Sandboxes have no network, so the runner relays. A connection that the gateway does not accept is closed at once: inside the sandbox this looks
like an absent gateway, as it would on the same host. The gateway ends connections that are too many or send nothing, and these end here with it.
A quarter of the runner's descriptors is the limit of one socket; above it, new connections are closed at once.
"""

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.abc

from orchestrator.bus.feed import in_background
from orchestrator.runtime import accepting
from orchestrator.runtime.descriptors import descriptor_limit
from orchestrator.runtime.log import get
from orchestrator.runtime.probed_socket import probe
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

BACKLOG = 1024  # a Unix socket whose backlog is full turns clients away at once
END_S = 1.0

Target = Callable[[], tuple[str, int] | None]
"""The current target of connections: host and port; None: no target."""


@asynccontextmanager
async def bridged(path: Path, target: Target, *, most: int | None = None) -> AsyncIterator[None]:
    """Serve a socket at `path` while the context is open. Any user may connect (the token is the key). Its directory must exist. `most`: connections
    at a time, each with four descriptors; by default a quarter of the descriptors that this process may open."""
    path.unlink(missing_ok=True)
    listener = await anyio.create_unix_listener(path, mode=0o666, backlog=BACKLOG)
    bridge = _Bridge(target, descriptor_limit() // 16 if most is None else most)
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
    """The two ends of a connection, by descriptors of its own: event loops do not shut sockets down, and reuse the number of one that they closed."""

    def __init__(self) -> None:
        self._ends: list[socket.socket] = []
        self._is_over = False

    @contextmanager
    def through(self, stream: anyio.abc.SocketStream) -> Iterator[socket.socket]:
        """`stream` is an end while the context is open; it ends at once if the connection is over. Yields the descriptor's socket. Raises OSError
        without a free descriptor."""
        raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        with socket.socket(fileno=os.dup(raw.fileno())) as own:
            self._ends.append(own)
            if self._is_over:
                self.end()
            try:
                yield own
            finally:
                self._ends.remove(own)

    def end(self) -> None:
        """Let both directions read an end. What was sent still arrives.

        A receiving task is not cancelled for it: where bytes arrive at the same moment, anyio's callback would raise InvalidStateError."""
        self._is_over = True
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


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
            connection = _Connection()
            self._open.add(connection)
            try:
                await _pass(client, target, connection)
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


async def _pass(client: anyio.abc.SocketStream, target: tuple[str, int], connection: _Connection) -> None:
    try:
        with anyio.fail_after(timeouts().gateway_connect_s):
            server = await anyio.connect_tcp(*target)
    except (OSError, TimeoutError) as error:
        log.info("bridge.refused", host=target[0], port=target[1], error=str(error) or "no answer")
        return
    async with server:
        try:
            with connection.through(client), connection.through(server) as to_gateway:
                probe(to_gateway)
                await _both_ways(client, server, connection)
        except OSError as error:
            log.warning("bridge.refused", host=target[0], port=target[1], error=str(error))


async def _both_ways(
    client: anyio.abc.SocketStream, server: anyio.abc.SocketStream, connection: _Connection
) -> None:
    async def answers() -> None:
        await _copy(server, client, connection)
        connection.end()  # a gateway that has ended a connection takes no more of it

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answers)
        tasks.start_soon(_copy, client, server, connection)


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
