"""HTTP's own part of the gateway: errors that the HTTP library raises before any handler runs get the form of the caller's wire.

| the library refuses | here |
|---|---|
| a request line, a header, a length or a chunk that is not HTTP | 400 |
| headers that are too large | 431 |
| an unknown `Expect` | 417 |
| its own fault | 500 |

The library does not decompress bodies: `encodings.py` does.

A connection is closed if the head of a request, its first or a later one, takes longer than `timeouts.request_head_s`. There are at most
`most_connections()`: above that, each new one closes the oldest on which no request is being answered. So a program that opens connections without
end keeps no other from the gateway.
"""

import asyncio
import re
import resource
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server

from orchestrator.gateway.http.base import problem_response
from orchestrator.gateway.http.dialects.errors import error_for
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

CONNECTIONS = 4096  # or half of the process's descriptors, if those are fewer

_KEPT = 4096  # bytes of a request's beginning that are searched for its wire
_LINE = re.compile(rb"(?:^|\n)[A-Za-z]{1,16} +([^ \r\n]+) +HTTP/")
_BROKEN_LINE = re.compile(rb"^\S+ +([^ \r\n]+)")


class _Connection(RequestHandler):
    """One connection. It keeps the beginning of its newest request, because errors of the library's parser have no path."""

    __slots__ = ("_beginning", "_newest", "_silence")

    def __init__(self, manager: Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._newest = self._beginning = b""
        self._silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._begin_silence()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end_silence()
        super().connection_lost(exc)

    def _begin_silence(self) -> None:
        if self._silence is None:
            self._silence = self._loop.call_later(timeouts().request_head_s, self.force_close)

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

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        if self._current_request is None:
            self._beginning = (self._beginning + data[:_KEPT])[:_KEPT]
        idle = self._waiter is not None  # nothing is served, and no rest of an earlier body is read
        super().data_received(data)
        if self._request_count > before:  # a request has arrived, completely or as far as it can be read
            self._newest, self._beginning = self._beginning or data[:_KEPT], b""
            self._end_silence()
        elif idle:
            self._begin_silence()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the response is sent already")
        if isinstance(exc, LineTooLong):
            problem = Problem(431, "headers_too_large", "the headers of the request are too large")
        elif status < HTTPStatus.INTERNAL_SERVER_ERROR:
            detail = " ".join((message or "").split())[:200]
            problem = bad_request(f"the request is not HTTP that can be read: {detail or 'it is malformed'}")
        else:
            log.error("request.failed", method=request.method, route="unknown", exc_info=exc)
            problem = Problem(500, "internal_error", "the gateway failed on this request")
        response = self._refusal(problem)
        response.force_close()
        return response

    def _refusal(self, problem: Problem) -> web.Response:
        lines = _LINE.findall(self._newest) or _BROKEN_LINE.findall(self._newest)
        path = lines[-1].decode("latin-1") if lines else "/"
        headers = {"anthropic-version": ""} if b"anthropic-version:" in self._newest.lower() else {}
        return problem_response(error_for(path, headers, problem), problem)


def raise_descriptor_limit() -> None:
    """Let this process open as many files as its connections may need, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 4 * CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """The limit of one listener's connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, soft // 2)


class _Wires(Server):
    """Creates our connections, and closes the oldest resting one when there are too many."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._most = most_connections()

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) <= self._most:
            return
        resting = (each for each in self._connections if each is not handler and each.resting)  # type: ignore[attr-defined]
        (next(resting, None) or handler).force_close()

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class WireRunner(web.AppRunner):
    """An AppRunner whose answers all have the form of a wire, and which does not decompress bodies."""

    def __init__(self, app: web.Application, **options: Any) -> None:
        super().__init__(app, auto_decompress=False, **options)

    async def _make_server(self) -> Server:
        server = await super()._make_server()
        handler = server.request_handler

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as refused:  # before any of our routes, for example for an Expect header
                problem = Problem(refused.status, "http_error", f"{refused.reason}: {request.method}")
                return problem_response(error_for(request.path, request.headers, problem), problem)

        return _Wires(
            handle,
            request_factory=server.request_factory,
            handler_cancellation=server.handler_cancellation,
            loop=server._loop,
            **server._kwargs,
        )
