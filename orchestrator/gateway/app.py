"""Routes of the sandbox side: what a harness can reach, over the Unix socket and over TCP alike.

    /s/<token>/v1/chat/completions      the token in the path, or as API key (Authorization: Bearer, x-api-key); both must agree
    /v1/chat/completions                the token as API key
    /s/<token>/native/complete          white-box scaffolds
    /s/<token>/v1/models, /v1/models    one model
    /health

No response repeats a header of an upstream answer. Nothing here can open, seal or list sessions.
"""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from orchestrator.gateway.book import SessionBook
from orchestrator.gateway.calls import Call, Calls
from orchestrator.gateway.dialects.base import Dialect, Incoming
from orchestrator.gateway.dialects.chat import ChatDialect
from orchestrator.gateway.dialects.native import NativeDialect
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.problems import Problem, bad_request, unknown_session
from orchestrator.gateway.sessions import Session
from orchestrator.log import get

log = get(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
DIALECTS: tuple[Dialect, ...] = (ChatDialect(), NativeDialect())


def token_of(request: web.Request) -> str:
    """The session token of a request. Problem 401 when there is none, or path and API key disagree."""
    given = [request.match_info["token"]] if "token" in request.match_info else []
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and bearer.strip():
        given.append(bearer.strip())
    if key := request.headers.get("x-api-key", "").strip():
        given.append(key)
    if not given or not all(hmac.compare_digest(given[0].encode(), other.encode()) for other in given):
        raise unknown_session()
    return given[0]


async def read_json(request: web.Request) -> Any:
    """The decoded body. Problem 413 above the limit, 400 when it is not JSON."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        limit = request.client_max_size
        raise Problem(413, "request_too_large", f"the body is larger than {limit:,} bytes") from None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from None


def json_response(value: Any, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


class SandboxRoutes:
    """The handlers behind every dialect's paths."""

    def __init__(self, book: SessionBook, calls: Calls, metrics: Metrics, model: str) -> None:
        self._book = book
        self._calls = calls
        self._metrics = metrics
        self._model = model

    def routes(self, dialects: Sequence[Dialect] = DIALECTS) -> list[web.RouteDef]:
        """Every route of the sandbox side."""
        found = [
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.get("/s/{token}/v1/models", self._models),
        ]
        for dialect in dialects:
            handler = self._handler(dialect)
            for path in dialect.paths:
                found += [web.post(path, handler), web.post("/s/{token}" + path, handler)]
        return found

    def _handler(self, dialect: Dialect) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                session = await self._book.find(token_of(request))
                incoming = dialect.read(await read_json(request), request.headers)
                call = self._calls.begin(session, incoming.request)
                with self._calls.serving(call):
                    if incoming.stream:
                        response = await self._stream(dialect, incoming, request, session, call)
                    else:
                        response = await self._answer(dialect, incoming, request, session, call)
                self._metrics.requests.labels(dialect.name, "ok").inc()
                return response
            except Problem as problem:
                self._metrics.requests.labels(dialect.name, problem.code).inc()
                return json_response(dialect.error(problem), problem.status)

        return handle

    async def _answer(
        self, dialect: Dialect, incoming: Incoming, request: web.Request, session: Session, call: Call
    ) -> web.StreamResponse:
        reply = await call.result()
        response = json_response(dialect.reply(incoming, reply))
        try:
            await response.prepare(request)
            await response.write_eof()
        except ConnectionError:
            self._calls.undelivered(session, reply.step)
            return response
        self._calls.delivered(session, reply)
        return response

    async def _stream(
        self, dialect: Dialect, incoming: Incoming, request: web.Request, session: Session, call: Call
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        try:
            await response.prepare(request)
            async for event in dialect.stream(incoming, call):
                await response.write(event)
            await response.write_eof()
        except ConnectionError:
            if call.succeeded:
                self._calls.undelivered(session, (await call.result()).step)
            return response
        if call.succeeded:
            self._calls.delivered(session, await call.result())
        return response

    async def _health(self, request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def _models(self, request: web.Request) -> web.Response:
        try:
            await self._book.find(token_of(request))
        except Problem as problem:
            return json_response(ChatDialect().error(problem), problem.status)
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "penstock"}
        return json_response({"object": "list", "data": [model]})


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What no handler answered: unknown routes and our own faults, in the form that OpenAI's clients read."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        problem = Problem(error.status, "not_found" if error.status == 404 else "http_error", error.reason)
    except Exception:
        log.exception("request.failed", method=request.method, route=_route(request))
        problem = Problem(500, "internal_error", "the gateway failed on this request")
    return json_response(ChatDialect().error(problem), problem.status)


def _route(request: web.Request) -> str:
    """The route's pattern: a path may hold a token, which is never logged."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
