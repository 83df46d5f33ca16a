"""HTTP's own part of the gateway: errors that the HTTP library raises before any handler runs get the form of the caller's wire.

| the library refuses | here |
|---|---|
| a request line, a header, a length or a chunk that is not HTTP | 400 |
| headers that are too large | 431 |
| an unknown `Expect` | 417 |
| its own fault | 500 |

The library does not decompress bodies: `encodings.py` does.

`runtime/http_connections.py` bounds the time of heads and the number of connections.
"""

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_server import Server

from orchestrator.gateway.http.base import problem_response
from orchestrator.gateway.http.dialects.errors import error_for
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.runtime.http_connections import BoundedConnection, BoundedRunner
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

_KEPT = 4096  # bytes of a request's beginning that are searched for its wire
_LINE = re.compile(rb"(?:^|\n)[A-Za-z]{1,16} +([^ \r\n]+) +HTTP/")
_BROKEN_LINE = re.compile(rb"^\S+ +([^ \r\n]+)")


class _Connection(BoundedConnection):
    """One connection. It keeps the beginning of its newest request, because errors of the library's parser have no path."""

    __slots__ = ("_beginning", "_newest")

    def __init__(self, manager: Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._newest = self._beginning = b""

    def data_received(self, data: bytes) -> None:
        if self._current_request is None:
            self._beginning = (self._beginning + data[:_KEPT])[:_KEPT]
        super().data_received(data)

    def request_arrived(self, data: bytes) -> None:
        self._newest, self._beginning = self._beginning or data[:_KEPT], b""

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


class WireRunner(BoundedRunner):
    """A runner whose answers all have the form of a wire, and which does not decompress bodies."""

    kind = _Connection

    def __init__(self, app: web.Application, **options: Any) -> None:
        super().__init__(app, head_s=timeouts().request_head_s, auto_decompress=False, **options)

    def handled(self, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> Any:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await handle(request)
            except web.HTTPException as refused:  # before any of our routes, for example for an Expect header
                problem = Problem(refused.status, "http_error", f"{refused.reason}: {request.method}")
                return problem_response(error_for(request.path, request.headers, problem), problem)

        return answer
