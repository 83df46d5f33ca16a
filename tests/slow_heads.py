"""Clients of an HTTP server that send the head of a request a byte at a time, and never the end of it."""

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import anyio

from tests.waiting import eventually

BEGINNINGS = (b"", b"GET /", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")


async def until_closed(url: str, sent: bytes, answered: Callable[[], Awaitable[bool]]) -> None:
    """Send `sent` (if nothing, nothing more) and then a byte at a time, until the server closes the connection without an answer; all the time,
    others are answered. Raises TimeoutError if the server does not close it."""
    at = urlsplit(url)
    assert at.hostname is not None and at.port is not None
    async with await anyio.connect_tcp(at.hostname, at.port) as stream:

        async def closed() -> bool:
            assert await answered()
            try:
                if sent:
                    await stream.send(b"x")
                with anyio.move_on_after(0.05):
                    raise AssertionError(f"the server answers {await stream.receive()!r}")
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return True
            return False

        if sent:
            await stream.send(sent)
        await eventually(closed)
