"""A relay on one connection of one process: it passes data on, or stalls, cuts, delays or shuffles it.

    process ──▶ relay ──▶ service

It does not inspect the data, with two exceptions. Towards a NATS client it can find the ends of messages, to change their order.
On the socket of sandboxes a connection that starts with WITNESS is for the ledger, not for the gateway.

| produces | waits for | unblocked by |
|---|---|---|
| bytes | bytes, an end of the stall | either side, `pass_on` |
"""

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, Listener

from ops.lab.chaos.plan import FaultKind
from orchestrator.deploy.embedded.ports import LOOPBACK, free_port

PIECE: Final = 1 << 16
HOLD: Final = 8  # messages that are shuffled together
HOLD_S: Final = 0.05
WITNESS: Final = b"WITNESS\n"
_MESSAGE = re.compile(rb"(?:H?MSG) [^\r\n]*?(\d+)\r\n")

Address = tuple[str, int] | str  # host and port, or a Unix socket


class Relay:
    """One listener in front of one service. `to` may be set later; until then connections are refused. Made by `listening`."""

    def __init__(self, to: Address | None, hear: Callable[[bytes], None] | None) -> None:
        self.to = to
        self.port = 0
        self._handle = hear
        self._mode: FaultKind | None = None
        self._delay_s = 0.0
        self._random = Random(0)
        self._free = anyio.Event()
        self._free.set()
        self._open: set[anyio.CancelScope] = set()
        self.shuffles = 0  # pieces of two messages or more that were passed on in another order
        self.met = 0  # pieces that were stalled or delayed, connections that a cut ended or refused

    @property
    def connections(self) -> int:
        return len(self._open)

    def part(self, kind: FaultKind, *, delay_s: float, seed: int) -> None:
        """Start to stall, cut, delay or reorder."""
        self._mode, self._delay_s, self._random = kind, delay_s, Random(seed)
        if kind is FaultKind.STALL:
            self._free = anyio.Event()
        if kind is FaultKind.CUT:
            self.met += len(self._open)
            for scope in list(self._open):
                scope.cancel()

    def pass_on(self) -> None:
        """Pass data on unchanged again."""
        self._mode = None
        self._free.set()

    async def serve(self, client: ByteStream) -> None:
        """Serve one connection until it ends."""
        with anyio.CancelScope() as scope:
            async with client:
                begin = b""
                if self._handle is not None:  # here the client sends first
                    try:
                        begin = await client.receive(PIECE)
                        if begin.startswith(WITNESS):
                            await self._listen_to(client, begin)
                            return
                    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                        return
                if self._mode is FaultKind.CUT:
                    self.met += 1
                    return
                if self.to is None:
                    return
                self._open.add(scope)
                try:
                    await self._join(client, begin)
                except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                    pass  # one side closed: close the other
                finally:
                    self._open.discard(scope)

    async def _listen_to(self, client: ByteStream, received: bytes) -> None:
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                received += await client.receive(PIECE)
        assert self._handle is not None
        self._handle(received.removeprefix(WITNESS))

    async def _join(self, client: ByteStream, begin: bytes) -> None:
        assert self.to is not None
        server: ByteStream
        if isinstance(self.to, str):
            server = await anyio.connect_unix(self.to)
        else:
            server = await anyio.connect_tcp(*self.to)
        async with server, anyio.create_task_group() as tasks:

            async def copy(source: ByteStream, sink: ByteStream, first: bytes, shuffled: bool) -> None:
                try:
                    await self._copy(source, sink, first, shuffled)
                except anyio.EndOfStream:
                    with contextlib.suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                        await sink.send_eof()
                except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                    tasks.cancel_scope.cancel()

            tasks.start_soon(copy, client, server, begin, False)
            tasks.start_soon(copy, server, client, b"", True)

    async def _copy(self, source: ByteStream, sink: ByteStream, first: bytes, shuffled: bool) -> None:
        data = first
        while True:
            if data:
                if self._mode is FaultKind.DELAY:
                    self.met += 1
                    await anyio.sleep(self._delay_s)
                if not self._free.is_set():
                    self.met += 1
                    await self._free.wait()
                if shuffled and self._mode is FaultKind.REORDER:
                    data = await self._shuffled(source, data)
                await sink.send(data)
            data = await source.receive(PIECE)

    async def _shuffled(self, source: ByteStream, data: bytes) -> bytes:
        """The data that NATS sends within HOLD_S, its messages in another order. Other lines come before all messages."""
        with anyio.move_on_after(HOLD_S):
            while data.count(b"MSG ") < HOLD:
                data += await source.receive(PIECE)
        while True:
            messages, others, complete = split(data)
            if complete:
                before = list(messages)
                self._random.shuffle(messages)
                self.shuffles += messages != before
                return b"".join([*others, *messages])
            data += await source.receive(PIECE)


def split(data: bytes) -> tuple[list[bytes], list[bytes], bool]:
    """(messages, other lines, whether the last item is whole) of data from a NATS server.

    >>> split(b"PING\\r\\nMSG a 1 2\\r\\nhi\\r\\n")
    ([b'MSG a 1 2\\r\\nhi\\r\\n'], [b'PING\\r\\n'], True)
    """
    messages: list[bytes] = []
    others: list[bytes] = []
    at = 0
    while at < len(data):
        end = data.find(b"\r\n", at)
        if end < 0:
            return messages, others, False
        found = _MESSAGE.fullmatch(data, at, end + 2)
        if found is None:
            others.append(data[at : end + 2])
            at = end + 2
            continue
        after = found.end() + int(found[1]) + 2
        if after > len(data):
            return messages, others, False
        messages.append(data[at:after])
        at = after
    return messages, others, True


@asynccontextmanager
async def listening(
    to: Address | None = None, *, path: Path | None = None, hear: Callable[[bytes], None] | None = None
) -> AsyncIterator[Relay]:
    """A relay that listens on a port of 127.0.0.1, or at the Unix socket `path`, which every user may connect to."""
    relay = Relay(to, hear)
    if path is not None:
        path.unlink(missing_ok=True)
        listener: Listener[Any] = await anyio.create_unix_listener(path, mode=0o666)
    else:
        relay.port = free_port()
        listener = await anyio.create_tcp_listener(local_host=LOOPBACK, local_port=relay.port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, relay.serve)
        try:
            yield relay
        finally:
            tasks.cancel_scope.cancel()
