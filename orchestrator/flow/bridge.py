"""A Unix socket on this host that leads to what a gateway on another host lets sandboxes reach: bytes pass through, nothing is read.

Sandboxes have no network, so the runner stands in between. A connection that the gateway does not take is closed at once: to whoever is in
the sandbox that is a gateway that is away, as it would be on the same host.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc

from orchestrator.bus.feed import beside
from orchestrator.clock import clock
from orchestrator.log import get

log = get(__name__)

CHUNK = 65536
BACKLOG = 1024  # a Unix socket whose backlog is full turns clients away at once

Target = Callable[[], tuple[str, int] | None]
"""Where connections go now: host and port; None: nowhere."""


@asynccontextmanager
async def bridged(socket: Path, target: Target) -> AsyncIterator[None]:
    """Serve `socket`, which everybody may connect to (the token is the key), while the context is open. Its directory is there."""
    socket.unlink(missing_ok=True)
    listener = await anyio.create_unix_listener(socket, mode=0o666, backlog=BACKLOG)

    async def connect(client: anyio.abc.SocketStream) -> None:
        async with client:
            await _pass(client, target())

    async def serve() -> None:
        await listener.serve(connect)

    try:
        async with beside(serve):
            yield
    finally:
        await listener.aclose()
        socket.unlink(missing_ok=True)


async def _pass(client: anyio.abc.SocketStream, target: tuple[str, int] | None) -> None:
    if target is None:
        return
    try:
        with anyio.fail_after(clock().gateway_connect_s):
            server = await anyio.connect_tcp(*target)
    except (OSError, TimeoutError) as error:
        log.info("bridge.refused", host=target[0], port=target[1], error=str(error) or "no answer")
        return
    async with server, anyio.create_task_group() as tasks:
        tasks.start_soon(_copy, client, server)
        tasks.start_soon(_copy, server, client)


async def _copy(source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream) -> None:
    """Pass on what arrives until `source` ends, then tell `sink`. A connection that breaks ends both ways."""
    try:
        async for chunk in source:
            await sink.send(chunk)
        await sink.send_eof()
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        for stream in (source, sink):
            await anyio.aclose_forcefully(stream)
