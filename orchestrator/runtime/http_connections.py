"""Connections of an aiohttp server that a client cannot hold without end: the gateway, the dashboard and the embedded rollout server use it.

    runner = BoundedRunner(app, head_s=30.0, access_log=None)      # otherwise a web.AppRunner

A connection is closed if the head of a request, its first or a later one, takes longer than `head_s`. There are at most `most_connections()`: above
that, each new one closes the oldest whose head is not complete, else the oldest on which no request is being answered. So a program that opens
connections without end keeps no other from the server.
"""

import asyncio
import resource
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server

CONNECTIONS = 4096  # or half of the process's descriptors, if those are fewer

_Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class BoundedConnection(RequestHandler):
    """One connection, closed when a head does not arrive in time."""

    __slots__ = ("_head_s", "_silence")

    def __init__(self, manager: Server, *, head_s: float, **options: Any) -> None:
        super().__init__(manager, **options)
        self._head_s = head_s
        self._silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first head."""
        self._begin_silence()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Wait no longer."""
        self._end_silence()
        super().connection_lost(exc)

    def _begin_silence(self) -> None:
        if self._silence is None:
            self._silence = self._loop.call_later(self._head_s, self.force_close)

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    @property
    def resting(self) -> bool:
        """Whether no request on it is being read or answered."""
        return (
            self._current_request is None
            and not self._messages
            and self.transport is not None
            and not self.transport.is_closing()
        )

    @property
    def silent(self) -> bool:
        """Whether it rests, and the head of its first or next request is not complete."""
        return self._silence is not None and self.resting

    def data_received(self, data: bytes) -> None:
        """Take bytes. The first ones of a later request begin to wait for its head."""
        before = self._request_count
        idle = self._waiter is not None  # nothing is served, and no rest of an earlier body is read
        super().data_received(data)
        if self._request_count > before:  # a request has arrived, completely or as far as it can be read
            self._end_silence()
            self.request_arrived(data)
        elif idle:
            self._begin_silence()

    def request_arrived(self, data: bytes) -> None:
        """Called when the head of a request is complete or cannot be read; `data`: the bytes that completed it."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse a request that is not HTTP. The library would log a traceback for each."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the response is sent already")
        response = web.Response(status=status, text="the request is not HTTP that can be read\n")
        response.force_close()
        return response


def most_connections() -> int:
    """The limit of one listener's connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, soft // 2)


class _BoundedServer(Server):
    """Creates `kind` of connections, and closes the oldest silent or resting one when there are too many."""

    def __init__(
        self, handle: _Handle, *, kind: type[BoundedConnection], head_s: float, **options: Any
    ) -> None:
        super().__init__(handle, **options)
        self._kind, self._head_s, self._most = kind, head_s, most_connections()

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Note it, and close another if there are too many."""
        super().connection_made(handler, transport)
        if len(self._connections) <= self._most:
            return
        others = [
            each for each in self._connections if isinstance(each, BoundedConnection) and each is not handler
        ]
        closed = next((each for each in others if each.silent), None) or next(
            (each for each in others if each.resting), None
        )
        (closed or handler).force_close()

    def __call__(self) -> RequestHandler:
        """A new connection."""
        return self._kind(self, loop=self._loop, head_s=self._head_s, **self._kwargs)


class BoundedRunner(web.AppRunner):
    """An AppRunner whose connections are of `kind`."""

    kind: type[BoundedConnection] = BoundedConnection

    def __init__(self, app: web.Application, *, head_s: float, **options: Any) -> None:
        """Raises nothing. `head_s`: the seconds that the head of a request may take."""
        super().__init__(app, **options)
        self._head_s = head_s

    def handled(self, handle: _Handle) -> _Handle:
        """The handler of all requests, made from the application's."""
        return handle

    async def _make_server(self) -> Server:
        server = await super()._make_server()
        return _BoundedServer(
            self.handled(server.request_handler),
            kind=self.kind,
            head_s=self._head_s,
            request_factory=server.request_factory,
            handler_cancellation=server.handler_cancellation,
            loop=server._loop,
            **server._kwargs,
        )
