"""The proxy of one sandbox: it decides on each connection, and forwards those that it allows.

| a program sends | forwarded if |
|---|---|
| `CONNECT host:443` | the host is allowed, its addresses are public, and the TLS ClientHello that follows names the same host |
| `METHOD http://host/…`, port 80 | the host is allowed, its addresses are public, and the Host header names the same host |

A name is resolved once, and the connection goes to an address that was checked. Every connection carries one request. Each decision is logged and
counted. In tests alone, `resolve` and `dial` are replaced.
"""

import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from orchestrator.contracts.hosts import Address, host_of
from orchestrator.contracts.network import Access
from orchestrator.contracts.quote import quoted
from orchestrator.runner.egress import client_hello, heads
from orchestrator.runner.egress.addresses import in_turns, is_ours, not_public, parsed
from orchestrator.runner.egress.client_hello import NotTls
from orchestrator.runner.egress.heads import Malformed, Request
from orchestrator.runner.egress.metrics import EgressMetrics
from orchestrator.runtime.exception_groups import first_error
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import measured
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

CONNECTIONS: Final = 128
"""Open connections of one sandbox: more than package managers and browsers open, and few next to a process's descriptors."""
LINES: Final = 1000
"""Lines of the log about one sandbox; a program that loops must not fill the disk. What is left out is counted in one line at the end."""
ADDRESSES: Final = 4
"""Addresses of a host that are tried."""
LOOKUPS: Final = 4
"""Names that one sandbox looks up at a time, in threads of its own: names that do not answer hold up nothing else."""
_CHUNK: Final = 65536
_LATE: Final = "it does not answer in time"

Resolve = Callable[[str], Awaitable[Sequence[Address]]]
Dial = Callable[[Address, int], Awaitable[anyio.abc.ByteStream]]


class Refused(Exception):
    """A connection that is not forwarded. `status`: of the answer, if the program still waits for one."""

    def __init__(self, why: str, status: int = 403) -> None:
        super().__init__(why)
        self.status = status


async def look_up(name: str, limiter: anyio.CapacityLimiter) -> Sequence[Address]:
    """All addresses of a name, looked up once. The dot at its end keeps search domains out. OSError if it has none."""
    call = partial(socket.getaddrinfo, f"{name}.", None, type=socket.SOCK_STREAM)
    found = await anyio.to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=True)
    return list(dict.fromkeys(parsed(str(entry[4][0])) for entry in found))


async def connect(address: Address, port: int) -> anyio.abc.ByteStream:
    """A connection to an address that was checked."""
    return await anyio.connect_tcp(str(address), port)


class _Flow:
    """One connection: what the log says about it, and when bytes last moved."""

    def __init__(self) -> None:
        self.host, self.port, self.address = "", 0, ""
        self.sent = self.received = 0
        self.began = self.moved = time.monotonic()


class Proxy:
    """The proxy of one sandbox with `access`. `resolve` and `dial`: for tests alone, so that no test reaches a network."""

    def __init__(self, access: Access, *, resolve: Resolve | None = None, dial: Dial | None = None) -> None:
        self._access = access
        self._resolve = resolve or partial(look_up, limiter=anyio.CapacityLimiter(LOOKUPS))
        self._dial = dial or connect
        self._left = access.most_bytes
        self._open = self._lines = self._unlogged = 0

    async def serve(self, client: anyio.abc.ByteStream) -> None:
        """Serve one connection of the sandbox, to its end."""
        metrics, flow = measured(EgressMetrics), _Flow()
        self._open += 1
        metrics.open.inc()
        try:
            async with client:
                try:
                    if self._open > CONNECTIONS:
                        raise Refused(f"more than {CONNECTIONS} connections of one sandbox are open", 503)
                    await self._serve(client, flow)
                except (Refused, Malformed) as error:
                    metrics.connections.labels("refused").inc()
                    self._say("egress.refused", flow, reason=str(error))
                    await _answer(client, error)
                except (OSError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
                    metrics.connections.labels("failed").inc()
                    self._say("egress.failed", flow, reason=str(error) or type(error).__name__)
        finally:
            self._open -= 1
            metrics.open.dec()

    def close(self) -> None:
        """Say how many lines the log left out."""
        if self._unlogged:
            log.warning("egress.unlogged", connections=self._unlogged)

    async def _serve(self, client: anyio.abc.ByteStream, flow: _Flow) -> None:
        reader = _Reader(client)
        with anyio.move_on_after(timeouts().egress_head_s) as scope:
            head = await reader.until(heads.END, heads.MAX_BYTES)
        if scope.cancelled_caught:
            raise Refused("no whole request arrived in time", 408)
        if head is None:
            return  # a connection that is opened and closed: nothing to decide
        try:
            wanted = heads.request(head)
        except Malformed as error:
            flow.host, flow.port = error.host, error.port
            raise
        flow.host, flow.port = str(wanted.host), wanted.port
        self._spend(0)
        server = await self._reach(wanted, flow)
        async with server:
            if wanted.tunnel:
                await self._tunnel(client, reader, server, wanted, flow)
            else:
                await self._forward(client, reader, server, wanted, flow)

    async def _reach(self, wanted: Request, flow: _Flow) -> anyio.abc.ByteStream:
        """A connection to an address of the host, once every address is checked."""
        host, port = wanted.host, heads.HTTPS if wanted.tunnel else heads.HTTP
        if wanted.port != port:
            raise Refused(
                f"port {wanted.port} is closed: {'CONNECT' if wanted.tunnel else 'http://'} reaches port {port} alone"
            )
        if not self._access.allows(host):
            raise Refused("the host is not among those that the task may reach")
        with anyio.move_on_after(timeouts().egress_connect_s) as scope:
            try:
                found = [host] if not isinstance(host, str) else await self._resolve(host)
            except (OSError, UnicodeError) as error:
                raise Refused(f"its name is not found: {error}", 502) from None
            if not found:
                raise Refused("its name is not found", 502)
            for address in found:
                if (why := _closed(address)) is not None:
                    raise Refused(why)
            return await self._dialled(in_turns(found)[:ADDRESSES], port, flow, scope.deadline)
        raise Refused(_LATE, 504)

    async def _dialled(
        self, found: Sequence[Address], port: int, flow: _Flow, deadline: float
    ) -> anyio.abc.ByteStream:
        """A connection to the first address that answers. Each has an equal part of the time that is left, so that one that drops packets leaves
        the others theirs."""
        problem = ""
        for tried, address in enumerate(found):
            share_s = (deadline - anyio.current_time()) / (len(found) - tried)
            try:
                with anyio.move_on_after(share_s):
                    server = await self._dial(address, port)
                    flow.address = str(address)
                    return server
            except OSError as error:
                problem = str(error)
        raise Refused(f"it does not answer: {problem}", 502) if problem else Refused(_LATE, 504)

    async def _tunnel(
        self,
        client: anyio.abc.ByteStream,
        reader: "_Reader",
        server: anyio.abc.ByteStream,
        wanted: Request,
        flow: _Flow,
    ) -> None:
        await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            with anyio.fail_after(timeouts().egress_head_s):
                named = await reader.server_name()
        except TimeoutError:
            raise Refused("no TLS ClientHello arrived in time", 0) from None
        except NotTls as error:
            raise Refused(f"only TLS is forwarded: {error}", 0) from None
        _check_name(named, wanted.host)
        self._allowed(flow)
        first = reader.rest()
        await self._pass(flow, server, first, sent=True)

        async def up() -> None:
            await self._copy(client, server, flow, sent=True)

        async def down() -> None:
            await self._copy(server, client, flow, sent=False)

        await self._both(flow, None, up, down)

    async def _forward(
        self,
        client: anyio.abc.ByteStream,
        reader: "_Reader",
        server: anyio.abc.ByteStream,
        wanted: Request,
        flow: _Flow,
    ) -> None:
        self._allowed(flow)
        await self._pass(flow, server, wanted.head, sent=True)
        answered = anyio.Event()

        async def up() -> None:
            left = wanted.body
            while left:
                piece = await reader.some(left)
                left -= len(piece)
                await self._pass(flow, server, piece, sent=True)
            # Nothing behind the request is forwarded, and a program that leaves ends it.
            try:
                if await reader.some(1):
                    measured(EgressMetrics).connections.labels("refused").inc()
                    self._say("egress.refused", flow, reason="a second request on one connection")
                    await answered.wait()
            except anyio.EndOfStream:
                if not answered.is_set():
                    raise _Done from None

        async def down() -> None:
            replies, interim = _Reader(server), True
            while interim:
                head = await replies.until(heads.END, 2 * heads.MAX_BYTES)
                if head is None:
                    raise Refused("the server ends without an answer", 502)
                written, interim = heads.response(head)
                await self._pass(flow, client, written, sent=False)
            if rest := replies.rest():
                await self._pass(flow, client, rest, sent=False)
            await self._copy(server, client, flow, sent=False)
            answered.set()  # the program sees the end, and closes its side

        await self._both(flow, client, up, down)

    async def _both(
        self, flow: _Flow, client: anyio.abc.ByteStream | None, *ways: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Both directions of a connection until they end, or until no byte moves for `timeouts.egress_idle_s`; the end is logged. `client`: who is
        informed of a failure before the first byte of an answer."""
        ended, failed = "", False
        try:
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    async with anyio.create_task_group() as directions:
                        for way in ways:
                            directions.start_soon(way)
                    tasks.cancel_scope.cancel()

                tasks.start_soon(run)
                await _idle(flow)
                ended, failed = "no byte moved for too long", True
                tasks.cancel_scope.cancel()
        except* _Done:
            pass
        except* (Refused, Malformed) as group:
            error = first_error(group)
            ended, failed = str(error), True
            if client is not None and not flow.received:
                await _answer(client, error)
        except* (
            OSError,
            TimeoutError,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            anyio.EndOfStream,
        ) as lost:
            ended = str(first_error(lost)) or type(first_error(lost)).__name__
        if failed:
            measured(EgressMetrics).connections.labels("failed").inc()
        self._say(
            "egress.closed",
            flow,
            reason=ended or "it ended",
            sent=flow.sent,
            received=flow.received,
            seconds=round(time.monotonic() - flow.began, 3),
        )

    async def _copy(
        self, source: anyio.abc.ByteStream, sink: anyio.abc.ByteStream, flow: _Flow, *, sent: bool
    ) -> None:
        async for piece in source:
            await self._pass(flow, sink, piece, sent=sent)
        await sink.send_eof()

    async def _pass(self, flow: _Flow, sink: anyio.abc.ByteStream, piece: bytes, *, sent: bool) -> None:
        self._spend(len(piece))
        await sink.send(piece)
        flow.moved = time.monotonic()
        if sent:
            flow.sent += len(piece)
        else:
            flow.received += len(piece)
        measured(EgressMetrics).bytes.labels("sent" if sent else "received").inc(len(piece))

    def _spend(self, count: int) -> None:
        if count > self._left or not self._left:
            self._left = 0
            raise Refused(
                f"the sandbox has used up its {self._access.most_bytes >> 20} MB (sandbox.egress_mb)"
            )
        self._left -= count

    def _allowed(self, flow: _Flow) -> None:
        measured(EgressMetrics).connections.labels("allowed").inc()
        self._say("egress.allowed", flow)

    def _say(self, event: str, flow: _Flow, **more: object) -> None:
        self._lines += 1
        if self._lines > LINES:
            self._unlogged += 1
            return
        log.info(event, host=flow.host, port=flow.port, address=flow.address or None, **more)


class _Done(Exception):
    """The program has left before the end of its answer."""


class _Reader:
    """The bytes of a peer, with those that have arrived and are not taken yet."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream, self._held = stream, b""

    async def until(self, end: bytes, most: int) -> bytes | None:
        """Everything up to `end`, with it; None if the peer sends nothing at all. Malformed above `most` bytes or at an early end."""
        while (at := self._held.find(end)) < 0:
            if len(self._held) > most:
                raise Malformed("the head is too large", status=431)
            try:
                self._held += await self._stream.receive(_CHUNK)
            except anyio.EndOfStream:
                if not self._held:
                    return None
                raise Malformed("the head has no end") from None
        if at > most:
            raise Malformed("the head is too large", status=431)
        at += len(end)
        found, self._held = self._held[:at], self._held[at:]
        return found

    async def some(self, most: int) -> bytes:
        """At least one byte, at most `most`. EndOfStream at the end."""
        if not self._held:
            self._held = await self._stream.receive(_CHUNK)
        found, self._held = self._held[:most], self._held[most:]
        return found

    async def server_name(self) -> str:
        """The name in the ClientHello, which stays held. NotTls if something else arrives."""
        while (named := client_hello.server_name(self._held)) is None:
            if len(self._held) > 2 * client_hello.MAX_BYTES:
                raise NotTls("the ClientHello is too large")
            try:
                self._held += await self._stream.receive(_CHUNK)
            except anyio.EndOfStream:
                raise NotTls("it ends before a ClientHello") from None
        return named

    def rest(self) -> bytes:
        """The bytes that are held."""
        found, self._held = self._held, b""
        return found


def _closed(address: Address) -> str | None:
    """Why an address is not dialled, as the end of a sentence; None: it may be. Refused if this cannot be known now."""
    if (why := not_public(address)) is not None:
        return why
    try:
        return f"{address} is this machine's own" if is_ours(address) else None
    except OSError as error:
        raise Refused(f"the runner's machine cannot check its addresses: {error}", 503) from None


def _check_name(named: str, host: str | Address) -> None:
    """Refused unless the ClientHello asks for the host of the CONNECT. Clients name no server where they connect to an address (RFC 6066)."""
    if not named:
        if isinstance(host, str):
            raise Refused("the TLS ClientHello names no server (SNI)", 0)
        return
    try:
        same = host_of(named) == host
    except ValueError:
        same = False
    if not same:
        raise Refused(f"the TLS ClientHello names another server (SNI): {quoted(named)[:300]}", 0)


async def _idle(flow: _Flow) -> None:
    """Return when no byte has moved for `timeouts.egress_idle_s`."""
    while (left := flow.moved + timeouts().egress_idle_s - time.monotonic()) > 0:
        await anyio.sleep(left)


async def _answer(client: anyio.abc.ByteStream, error: BaseException) -> None:
    """Tell the program why, if it still listens."""
    if isinstance(error, Refused | Malformed) and error.status:
        with anyio.move_on_after(timeouts().egress_head_s):
            try:
                await client.send(heads.refusal(error.status, str(error)))
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
