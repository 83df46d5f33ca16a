"""A Unix socket on this host that leads to the sandbox routes of a gateway on another host: bytes pass through unread.

Sandboxes have no network, so the runner relays. A connection that the gateway does not accept is closed at once: inside the sandbox this looks
like an absent gateway, as it would on the same host.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc

from orchestrator.bus.feed import in_background
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

BACKLOG = 1024  # a Unix socket whose backlog is full turns clients away at once

Target = Callable[[], tuple[str, int] | None]
"""The current target of connections: host and port; None: no target."""


@asynccontextmanager
async def bridged(socket: Path, target: Target) -> AsyncIterator[None]:
    """Serve `socket` while the context is open. Any user may connect (the token is the key). The socket's directory must exist."""
    socket.unlink(missing_ok=True)
    listener = await anyio.create_unix_listener(socket, mode=0o666, backlog=BACKLOG)

    async def connect(client: anyio.abc.SocketStream) -> None:
        async with client:
            await _pass(client, target())

    async def serve() -> None:
        await listener.serve(connect)

    try:
        async with in_background(serve):
            yield
    finally:
        await listener.aclose()
        socket.unlink(missing_ok=True)


async def _pass(client: anyio.abc.SocketStream, target: tuple[str, int] | None) -> None:
    if target is None:
        return
    try:
        with anyio.fail_after(timeouts().gateway_connect_s):
            server = await anyio.connect_tcp(*target)
    except (OSError, TimeoutError) as error:
        log.info("bridge.refused", host=target[0], port=target[1], error=str(error) or "no answer")
        return
    async with server, anyio.create_task_group() as tasks:
        tasks.start_soon(_copy, client, server)
        tasks.start_soon(_copy, server, client)


async def _copy(source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream) -> None:
    """Forward bytes until `source` ends, then send EOF to `sink`. A broken connection ends both directions."""
    try:
        async for chunk in source:
            await sink.send(chunk)
        await sink.send_eof()
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        for stream in (source, sink):
            await anyio.aclose_forcefully(stream)
