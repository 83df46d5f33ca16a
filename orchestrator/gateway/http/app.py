"""Routes of the sandbox side: those that a harness can use, over the Unix socket and over TCP alike.

    /v1/chat/completions                            OpenAI Chat Completions
    /v1/responses, /v1/responses/input_tokens       OpenAI Responses
    /v1/responses/<id>, …/input_items               responses served to this session (stored_routes.py)
    /v1/messages, /v1/messages/count_tokens         Anthropic Messages
    /v1/models, /v1/models/<any>                    one model; its name is the caller's choice
    /, /v1, /health                                 probes (GET, HEAD)
    /s/<token>/…                                    all of these with the token in the path
    /s/<token>/native/complete, …/native/count      white-box scaffolds

The token of a session is in the path, or is the API key (Authorization: Bearer, x-api-key). If there are several, they must agree.
Every refusal has the form of the caller's dialect. No response repeats a header of an upstream answer. Nothing here can open, seal
or list sessions.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from orchestrator.gateway.completions.offload import SMALL, check_room
from orchestrator.gateway.completions.service import CompletionService
from orchestrator.gateway.http.base import problem_response, token_of
from orchestrator.gateway.http.bodies import (
    DIALECTS,
    costly,
    read,
    read_apart,
    read_body,
)
from orchestrator.gateway.http.dialects.base import (
    KEEP_ALIVE_S,
    Dialect,
    Events,
    Incoming,
    Known,
    Wanted,
)
from orchestrator.gateway.http.dialects.errors import error_for
from orchestrator.gateway.http.dialects.responses import unread_events
from orchestrator.gateway.http.stored import resolved, response_id
from orchestrator.gateway.http.stored_routes import StoredRoutes
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.problems import BodyTooLarge, Problem, bad_request
from orchestrator.gateway.sessions.budgets import Limit
from orchestrator.gateway.sessions.call import CompletionCall
from orchestrator.gateway.sessions.node import Placement
from orchestrator.gateway.sessions.registry import SessionRegistry
from orchestrator.gateway.sessions.session import Session
from orchestrator.runtime.json_response import json_response
from orchestrator.runtime.log import bind, get

log = get(__name__)

RESPONSES = "responses"  # the wire whose clients refer to responses that they were served
EVENT_STREAM = "text/event-stream"
RECEIVED = 2.0**28  # approximate bytes of bodies that the event loop receives per second
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SandboxRoutes:
    """The handlers behind every dialect's paths."""

    def __init__(
        self,
        sessions: SessionRegistry,
        completions: CompletionService,
        *,
        metrics: GatewayMetrics,
        model: str,
        stored: StoredRoutes,
    ) -> None:
        self._sessions = sessions
        self._completions = completions
        self._metrics = metrics
        self._model = model
        self._stored = stored

    def routes(self, dialects: Sequence[Dialect] = DIALECTS) -> list[web.RouteDef]:
        """Every route of the sandbox side."""
        found = []
        for base in ("", "/s/{token}"):
            for path in ("/", "/v1", "/health"):
                found.append(web.get(base + path, self._probe))
            found += [
                web.get(base + "/v1/models", self._models),
                web.get(base + "/v1/models/{model:.+}", self._one_model),
            ]
            for dialect in dialects:
                found += self._wire(dialect, base)
            found += self._stored.routes(base)
        return [*found, web.get("/s/{token}", self._probe)]

    def _wire(self, dialect: Dialect, base: str) -> list[web.RouteDef]:
        return [
            *(web.post(base + path, self._handler(dialect, self._complete)) for path in dialect.paths),
            *(web.post(base + path, self._handler(dialect, self._count)) for path in dialect.counting),
            *(web.head(base + path, self._probe) for path in (*dialect.paths, *dialect.counting)),
        ]

    def _handler(self, dialect: Dialect, serve: Callable[..., Awaitable[web.StreamResponse]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            started_at, incoming = time.perf_counter(), None
            counting = request.path.endswith(dialect.counting)
            try:
                session = await self._sessions.find(token_of(request))
                # Before its body is read, which may take longer than another's reply.
                first = session.known.unanswered
                incoming, size = await self._read(dialect, request, session, counting)
                if not counting:
                    incoming.request.check_answerable()
                    if first:
                        session.known.arrived(incoming.request.digest)
                with nullcontext() if counting else session.beginning(incoming.request):
                    placed = await self._completions.prepare(
                        session, incoming.request, size, counting=counting
                    )
                with bind(**session.ids):
                    response = await serve(dialect, incoming, request, session, placed)
                self._metrics.request_s.labels(dialect.name).observe(time.perf_counter() - started_at)
                return response
            except Problem as refused:
                problem = refused.untraced()
            except RecursionError:
                problem = bad_request("the body is nested too deeply")
            self._metrics.requests.labels(dialect.name, problem.code).inc()
            streamed = problem.streamed if incoming is None else incoming.stream
            if dialect.name == RESPONSES and streamed and not counting and problem.full_context:
                events = unread_events() if incoming is None else dialect.events(incoming)
                return _refused_stream(events, problem)
            return problem_response(dialect.error(problem), problem)

        return handle

    async def _read(
        self, dialect: Dialect, request: web.Request, session: Session, counting: bool
    ) -> tuple[Incoming, int]:
        """(the request, bytes of its body); a costly body is read in another process. Raises Problem 400 if it exceeds the context."""
        limit = self._completions.budgets.limit(session)
        try:
            await session.turn()  # a body that waits here has not been received yet
            with session.receiving():
                in_thread = partial(self._completions.large_requests.unpack, session)
                raw = await read_body(request, limit.bytes, in_thread)
            session.charge_time(len(raw) / RECEIVED)
            if costly(raw):
                check_room(session)
                self._completions.budgets.charge(session, aside=counting)
            known = Known(past=session.has_replied)
            while True:
                try:
                    return await self._read_once(dialect, raw, request, session, known, limit), len(raw)
                except Wanted as lookup:
                    if all(identifier in known.stored for identifier in lookup.ids):
                        raise  # it refers to an id that was not served here
                    with session.working():
                        known = replace(known, stored={**known.stored, **resolved(session, lookup.ids)})
                except Problem:
                    if len(raw) > SMALL and not costly(raw):  # costly bodies are counted already
                        self._completions.budgets.charge(session, aside=counting)
                    raise
        except BodyTooLarge as large:
            self._completions.budgets.charge(session, aside=counting)
            streamed = _accepts_stream(request) if large.streamed is None else large.streamed
            raise self._completions.budgets.too_long(session, counting, limit).of_stream(streamed) from None

    async def _read_once(
        self,
        dialect: Dialect,
        raw: bytes,
        request: web.Request,
        session: Session,
        known: Known,
        limit: Limit,
    ) -> Incoming:
        if not costly(raw):
            await session.turn()
            with session.working():
                return read(dialect, raw, request.headers, known)
        large_requests = self._completions.large_requests
        maximum, limiter = limit.tokens, large_requests.processes
        work = partial(read_apart, dialect, raw, request.headers, known, most=maximum, limiter=limiter)
        return await large_requests.run(session, work)

    async def _complete(
        self,
        dialect: Dialect,
        incoming: Incoming,
        request: web.Request,
        session: Session,
        placed: Placement | None,
    ) -> web.StreamResponse:
        with session.beginning(incoming.request):
            call = self._completions.begin(session, incoming.request, placed)
        if dialect.name == RESPONSES:
            identifier = response_id(session, incoming.request.digest, call)
            incoming = replace(incoming, echo={**incoming.echo, "id": identifier})
        with self._completions.serving(session, call):
            if incoming.stream:
                return await self._stream(dialect, incoming, request, session, call)
            return await self._answer(dialect, incoming, request, session, call)

    async def _count(
        self,
        dialect: Dialect,
        incoming: Incoming,
        request: web.Request,
        session: Session,
        placed: Placement | None,
    ) -> web.StreamResponse:
        tokens = self._completions.count(session, incoming.request, placed)
        self._metrics.requests.labels(dialect.name, "ok").inc()
        return json_response(dialect.counted(tokens))

    async def _answer(
        self,
        dialect: Dialect,
        incoming: Incoming,
        request: web.Request,
        session: Session,
        call: CompletionCall,
    ) -> web.StreamResponse:
        reply = await call.result()
        await self._name(dialect, incoming, session, reply.step)
        response = json_response(dialect.reply(incoming, reply))
        try:
            await response.prepare(request)
            await response.write_eof()
        except ConnectionError:
            self._completions.undelivered(session, reply.step)
            return response
        self._completions.delivered(session, reply)
        self._metrics.requests.labels(dialect.name, "ok").inc()
        return response

    async def _stream(
        self,
        dialect: Dialect,
        incoming: Incoming,
        request: web.Request,
        session: Session,
        call: CompletionCall,
    ) -> web.StreamResponse:
        events = dialect.events(incoming)
        response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM, "Cache-Control": "no-cache"})
        outcome = "disconnected"
        try:
            await response.prepare(request)
            await response.write(events.opening())
            while not await call.wait(KEEP_ALIVE_S):
                await response.write(events.waiting())
            if call.succeeded:
                await self._name(dialect, incoming, session, call.step)
            stream_outcome, ending = await self._ending(events, session, call)
            await response.write(ending)
            await response.write_eof()
            outcome = stream_outcome
        except ConnectionError:
            pass
        self._metrics.requests.labels(dialect.name, outcome).inc()
        if call.succeeded:
            reply = await call.result()
            if outcome == "ok":
                self._completions.delivered(session, reply)
            else:
                self._completions.undelivered(session, reply.step)
        return response

    async def _name(self, dialect: Dialect, incoming: Incoming, session: Session, step: int) -> None:
        if dialect.name == RESPONSES:
            await self._stored.name(session, incoming.echo["id"], step)

    async def _ending(self, events: Events, session: Session, call: CompletionCall) -> tuple[str, bytes]:
        """(outcome, the rest of the stream). A stream that has started always ends as its wire requires."""
        try:
            return "ok", b"".join(events.finished(await call.result()))
        except Problem as refused:
            return refused.code, b"".join(events.failed(refused))
        except Exception:
            self._metrics.faults.labels("dialect").inc()
            log.exception("stream.failed", rollout=session.spec.rollout)
            fault = Problem(500, "internal_error", "the gateway failed to write the reply")
            return fault.code, b"".join(events.failed(fault))

    async def _probe(self, request: web.Request) -> web.Response:
        """Report that the gateway is alive; below a token also check that its session is open."""
        if "token" in request.match_info:
            try:
                await self._sessions.find(token_of(request))
            except Problem as problem:
                return problem_response(error_for(request.path, request.headers, problem), problem)
        return json_response({"status": "ok"})

    async def _models(self, request: web.Request) -> web.Response:
        return await self._described(request, self._listed)

    async def _one_model(self, request: web.Request) -> web.Response:
        return await self._described(request, lambda: _model(request.match_info["model"]))

    async def _described(self, request: web.Request, describe: Callable[[], Any]) -> web.Response:
        try:
            await self._sessions.find(token_of(request))
        except Problem as problem:
            return problem_response(error_for(request.path, request.headers, problem), problem)
        return json_response(describe())

    def _listed(self) -> dict[str, Any]:
        return {
            "object": "list",
            "data": [_model(self._model)],
            "has_more": False,
            "first_id": self._model,
            "last_id": self._model,
        }


def _accepts_stream(request: web.Request) -> bool:
    """Whether the client expects a stream, as far as its headers show."""
    return EVENT_STREAM in ",".join(request.headers.getall("Accept", []))


def _refused_stream(events: Events, problem: Problem) -> web.Response:
    """A stream that ends with the refusal. OpenAI refuses a full context like this, and Codex recognizes it only there."""
    return web.Response(
        body=events.opening() + b"".join(events.failed(problem)),
        content_type=EVENT_STREAM,
        headers={"Cache-Control": "no-cache"},
    )


def _model(name: str) -> dict[str, Any]:
    """A model in a form that the clients of both OpenAI and Anthropic read."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "penstock",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    }


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer unknown routes and our own faults in the form that the caller's clients read."""
    allowed = None
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        problem = Problem(
            405, "method_not_allowed", f"{request.method} is not answered on this route: use {allowed}"
        )
    except web.HTTPNotFound:
        problem = Problem(
            404,
            "not_found",
            "no such route: use /v1/chat/completions, /v1/responses or /v1/messages, with or without /s/<token> before it",
        )
    except web.HTTPException as error:
        problem = Problem(error.status, "http_error", error.reason)
    except Exception:
        log.exception("request.failed", method=request.method, route=_route(request))
        problem = Problem(500, "internal_error", "the gateway failed on this request")
    response = problem_response(error_for(request.path, request.headers, problem), problem)
    if allowed is not None:
        response.headers["Allow"] = allowed
    return response


def _route(request: web.Request) -> str:
    """The route's pattern: a path may hold a token, which is never logged."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
