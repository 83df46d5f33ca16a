"""A plain socket that speaks to NATS: it publishes any bytes, which no client library would send."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote, urlsplit

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

LINE = 1 << 16


class RawNats:
    """One connection with the login of its URL."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._read = BufferedByteReceiveStream(stream)
        self.refusals: list[bytes] = []

    async def begin(self, login: str | None) -> None:
        await self._line()  # INFO
        options: dict[str, object] = {"verbose": False, "pedantic": False, "headers": True, "lang": "none"}
        if login is not None:
            options["auth_token"] = login
        await self._stream.send(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        await self.flush()

    async def publish(
        self, subject: bytes, body: bytes = b"", *, headers: bytes | None = None, reply: bytes = b""
    ) -> None:
        """Send, and wait until the server has read it."""
        where = subject + b" " + (reply + b" " if reply else b"")
        if headers is None:
            await self._stream.send(b"PUB %b%d\r\n%b\r\n" % (where, len(body), body))
        else:
            sizes = len(headers), len(headers) + len(body)
            await self._stream.send(b"HPUB %b%d %d\r\n%b%b\r\n" % (where, *sizes, headers, body))
        await self.flush()

    async def listen(self, pattern: bytes) -> None:
        await self._stream.send(b"SUB " + pattern + b" 1\r\n")
        await self.flush()

    async def end_listening(self) -> None:
        await self._stream.send(b"UNSUB 1\r\n")
        await self.flush()

    async def reply_of_next(self) -> bytes:
        """The reply subject of the next message."""
        while True:
            line = await self._line()
            if line.startswith((b"MSG", b"HMSG")):
                words = line.split()
                await self._read.receive_exactly(int(words[-1]) + 2)
                return words[3]

    async def flush(self) -> None:
        await self._stream.send(b"PING\r\n")
        while (line := await self._line()) != b"PONG":
            if line.startswith(b"-ERR"):
                self.refusals.append(line)
            elif line.startswith((b"MSG", b"HMSG")):
                await self._read.receive_exactly(int(line.split()[-1]) + 2)

    async def _line(self) -> bytes:
        with anyio.fail_after(60):
            line = await self._read.receive_until(b"\r\n", LINE)
        if line == b"PING":
            await self._stream.send(b"PONG\r\n")
        return line


@asynccontextmanager
async def raw_nats(url: str) -> AsyncIterator[RawNats]:
    parts = urlsplit(url)
    async with await anyio.connect_tcp(parts.hostname or "", parts.port or 4222) as stream:
        raw = RawNats(stream)
        await raw.begin(unquote(parts.username) if parts.username else None)
        yield raw
