"""The admin API, for runners: opening and ending sessions. TCP only, behind a bearer secret; a sandbox's socket never has these routes."""

import hmac
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta
from prometheus_client import CollectorRegistry, generate_latest
from scaffolds.base import Conversations

from orchestrator.contracts.numbers import INT2, INT4, INT8
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import SessionState
from orchestrator.gateway.http.base import read_json
from orchestrator.gateway.http.dialects.chat import ChatDialect
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.gateway.servers.pool import ServerPool
from orchestrator.gateway.sessions.registry import SessionRegistry
from orchestrator.gateway.sessions.session import Session, SessionSpec
from orchestrator.gateway_client import OpenSession, SessionBudget
from orchestrator.pool.drain_requests import DrainRequests
from orchestrator.runtime.json_response import json_response
from orchestrator.settings.sampling import checked
from orchestrator.settings.timeouts import MAX_S

_Small = Annotated[int, Meta(ge=0, le=INT2)]
_Whole = Annotated[int, Meta(ge=0, le=INT4)]
_Large = Annotated[int, Meta(ge=0, le=INT8)]


class _Budget(msgspec.Struct, frozen=True, kw_only=True):
    max_turns: _Whole
    max_context: _Whole
    max_total_tokens: _Large | None = None
    max_auxiliary_calls: _Whole | None = None
    max_auxiliary_tokens: _Large | None = None


class _Open(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    rollout: _Large
    attempt: _Small
    epoch: _Whole
    budget: _Budget
    ttl_s: Annotated[float, Meta(ge=0, le=MAX_S)] | None = None
    sampling: dict[str, Any] = {}
    scripted: list[dict[str, Any]] | None = None
    auxiliary: list[str] = []
    replayable: bool = False
    version: _Whole | None = None
    group: _Large | None = None
    conversations: Conversations = "many"
    sub_agents: list[str] | None = None
    instructions: list[str] = []


class _Lease(msgspec.Struct, frozen=True):
    rollout: _Large
    attempt: _Small
    epoch: _Whole


class AdminRoutes:
    """`url` and `socket_path` are sent to the client that opens a session; /metrics shows `registry`; `orders`: whether the gateway drains;
    `context`: computes the context of a session from its budget's limit; `cut_off`: ends the calls of a session that harnesses wait for."""

    def __init__(
        self,
        *,
        run: str,
        secret: str,
        sessions: SessionRegistry,
        pool: ServerPool,
        registry: CollectorRegistry,
        session_ttl_s: float,
        socket_path: Path,
        sandbox_port: int,
        orders: DrainRequests,
        context: Callable[[int], int],
        cut_off: Callable[[Session], Awaitable[None]],
    ) -> None:
        self._run = run
        self._secret = secret
        self._sessions = sessions
        self._pool = pool
        self._registry = registry
        self._ttl_s = session_ttl_s
        self._socket_path = socket_path
        self._sandbox_port = sandbox_port
        self._orders = orders
        self._context = context
        self._cut_off_calls = cut_off
        self.url = ""  # known once the listener is bound

    def routes(self) -> list[web.RouteDef]:
        """The admin routes, and those for operators."""
        return [
            web.post("/admin/sessions", self._guarded(self._open)),
            web.post("/admin/sessions/seal", self._guarded(self._seal)),
            web.post("/admin/sessions/abort", self._guarded(self._abort)),
            web.post("/admin/sessions/cut_off", self._guarded(self._cut_off)),
            web.post("/admin/sessions/activity", self._guarded(self._activity)),
            web.get("/admin/servers", self._guarded(self._servers)),
            web.get("/metrics", self._get_metrics),
            web.get("/readyz", self._ready),
        ]

    def _guarded(self, handler: Any) -> Any:
        async def handle(request: web.Request) -> web.Response:
            scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
            try:
                if scheme.lower() != "bearer" or not hmac.compare_digest(
                    bearer.strip().encode("utf-8", "surrogateescape"), self._secret.encode()
                ):
                    raise Problem(401, "invalid_api_key", "the admin secret is wrong")
                return json_response(msgspec.to_builtins(await handler(request)))
            except Problem as problem:
                return json_response(ChatDialect().error(problem), problem.status)

        return handle

    async def _open(self, request: web.Request) -> OpenSession:
        requested = _convert(await read_json(request), _Open)
        if requested.run != self._run:
            raise bad_request(
                f"this gateway serves the run {quoted(self._run)}, not {quoted(requested.run)}", "run"
            )
        try:
            sampling = checked(requested.sampling, most_seed=2**63 - 1)
        except ValueError as error:
            raise bad_request(str(error), "sampling") from None
        ttl_s = requested.ttl_s or self._ttl_s
        spec = SessionSpec(
            rollout=requested.rollout,
            attempt=requested.attempt,
            epoch=requested.epoch,
            budget=SessionBudget(**msgspec.structs.asdict(requested.budget)),
            expires=time.monotonic() + ttl_s,
            sampling=sampling,
            script=None if requested.scripted is None else tuple(requested.scripted),
            auxiliary=tuple(requested.auxiliary),
            replayable=requested.replayable,
            version=requested.version,
            group=requested.group,
            conversations=requested.conversations,
            sub_agents=None if requested.sub_agents is None else tuple(requested.sub_agents),
            instructions=tuple(requested.instructions),
        )
        token = await self._sessions.open(spec)
        path = f"/s/{token}/v1"
        return OpenSession(
            token=token,
            path=path,
            base_url=self.url + path,
            socket_path=str(self._socket_path),
            expires=time.time() + ttl_s,
            context=self._context(requested.budget.max_context),
        )

    async def _seal(self, request: web.Request) -> Any:
        lease = _convert(await read_json(request), _Lease)
        return await self._sessions.end(lease.rollout, lease.attempt, lease.epoch, SessionState.SEALED)

    async def _abort(self, request: web.Request) -> Any:
        lease = _convert(await read_json(request), _Lease)
        return await self._sessions.end(lease.rollout, lease.attempt, lease.epoch, SessionState.CLOSED)

    async def _cut_off(self, request: web.Request) -> Any:
        lease = _convert(await read_json(request), _Lease)
        session = self._sessions.current(lease.rollout, lease.attempt, lease.epoch)
        if session is not None:  # else nothing is in flight
            await self._cut_off_calls(session)
        return {}

    async def _activity(self, request: web.Request) -> Any:
        lease = _convert(await read_json(request), _Lease)
        activity = self._sessions.activity(lease.rollout, lease.attempt, lease.epoch)
        return replace(activity, sandbox_port=self._sandbox_port)

    async def _servers(self, request: web.Request) -> Any:
        return {
            "servers": [
                {
                    "url": server.url,
                    "version": server.version,
                    "ready": server.ready,
                    "answers": server.answers,
                    "delay_s": round(server.delay, 3),
                    "in_flight": len(server.in_flight),
                }
                for server in self._pool.servers
            ]
        }

    async def _ready(self, request: web.Request) -> web.Response:
        """200: the gateway takes sessions. Calls wait while no rollout server is ready.

        A draining gateway answers 503: a client with a new session must use another gateway, and a cluster that drains gateways one at a time
        must not touch the others at that time. The gateway's own sessions continue: they use its address, which readiness does not hide
        (`publishNotReadyAddresses`). The probes that end a process use its metrics port, which answers 200.
        """
        if self._orders.draining:
            return web.Response(
                text="it drains: it opens no new sessions, and goes on with those it has\n", status=503
            )
        return web.Response(text="ok\n")

    async def _get_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), content_type="text/plain")


def _convert(value: Any, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from None
