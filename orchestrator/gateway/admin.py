"""The admin API, for runners: opening and ending sessions. TCP only, behind a bearer secret; a sandbox's socket never has these routes."""

import hmac
import os
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.gateway.book import SessionBook
from orchestrator.gateway.dialects.chat import ChatDialect
from orchestrator.gateway.exchange import json_response, read_json
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.gateway.servers import ServerPool
from orchestrator.gateway.sessions import Terms
from orchestrator.gateway_client import SAMPLING_KEYS, Budget, OpenSession
from orchestrator.pool.orders import Orders


class _Budget(msgspec.Struct, frozen=True):
    max_turns: int
    max_context: int
    max_total_tokens: int | None = None


class _Open(msgspec.Struct, frozen=True):
    run: str
    rollout: int
    attempt: int
    epoch: int
    budget: _Budget
    ttl_s: float | None = None
    sampling: dict[str, Any] = {}
    scripted: list[dict[str, Any]] | None = None
    auxiliary: list[str] = []
    replayable: bool = False
    version: int | None = None
    group: int | None = None


class _Lease(msgspec.Struct, frozen=True):
    rollout: int
    attempt: int
    epoch: int


def admin_secret(path: Path) -> str:
    """The secret in `path`, made (mode 0600) when the file is absent. ConfigurationError when it is empty."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        secret = path.read_text(encoding="ascii").strip()
        if not secret:
            raise ConfigurationError(
                f"the admin secret file {path} is empty: remove it, and a new one is made"
            ) from None
        return secret
    with os.fdopen(descriptor, "w") as file:
        secret = secrets.token_urlsafe(32)
        file.write(secret + "\n")
    return secret


class AdminRoutes:
    """`url` and `socket_path` are told to whoever opens a session; `registry` is what /metrics shows; `orders`: whether it drains."""

    def __init__(
        self,
        *,
        run: str,
        secret: str,
        book: SessionBook,
        pool: ServerPool,
        registry: CollectorRegistry,
        session_ttl_s: float,
        socket_path: Path,
        sandbox_port: int,
        orders: Orders,
    ) -> None:
        self._run = run
        self._secret = secret
        self._book = book
        self._pool = pool
        self._registry = registry
        self._ttl_s = session_ttl_s
        self._socket_path = socket_path
        self._sandbox_port = sandbox_port
        self._orders = orders
        self.url = ""  # known once the listener is bound

    def routes(self) -> list[web.RouteDef]:
        """The admin routes, and those for operators."""
        return [
            web.post("/admin/sessions", self._guarded(self._open)),
            web.post("/admin/sessions/seal", self._guarded(self._seal)),
            web.post("/admin/sessions/abort", self._guarded(self._abort)),
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
                    bearer.strip().encode(), self._secret.encode()
                ):
                    raise Problem(401, "invalid_api_key", "the admin secret is wrong")
                return json_response(msgspec.to_builtins(await handler(request)))
            except Problem as problem:
                return json_response(ChatDialect().error(problem), problem.status)

        return handle

    async def _open(self, request: web.Request) -> OpenSession:
        wanted = _convert(await read_json(request), _Open)
        if wanted.run != self._run:
            raise bad_request(f"this gateway serves the run {self._run!r}, not {wanted.run!r}", "run")
        if unknown := sorted(set(wanted.sampling) - SAMPLING_KEYS):
            known = ", ".join(sorted(SAMPLING_KEYS))
            raise bad_request(f"unknown sampling keys {', '.join(unknown)}; known: {known}", "sampling")
        if not all(isinstance(value, int | float) for value in wanted.sampling.values()):
            raise bad_request("sampling values must be numbers", "sampling")
        ttl_s = wanted.ttl_s or self._ttl_s
        terms = Terms(
            rollout=wanted.rollout,
            attempt=wanted.attempt,
            epoch=wanted.epoch,
            budget=Budget(wanted.budget.max_turns, wanted.budget.max_context, wanted.budget.max_total_tokens),
            expires=time.monotonic() + ttl_s,
            sampling=wanted.sampling,
            script=None if wanted.scripted is None else tuple(wanted.scripted),
            auxiliary=tuple(wanted.auxiliary),
            replayable=wanted.replayable,
            version=wanted.version,
            group=wanted.group,
        )
        token = await self._book.open(terms)
        path = f"/s/{token}/v1"
        return OpenSession(token, path, self.url + path, str(self._socket_path), time.time() + ttl_s)

    async def _seal(self, request: web.Request) -> Any:
        lease = _convert(await read_json(request), _Lease)
        return await self._book.end(lease.rollout, lease.attempt, lease.epoch, "sealed")

    async def _abort(self, request: web.Request) -> Any:
        lease = _convert(await read_json(request), _Lease)
        return await self._book.end(lease.rollout, lease.attempt, lease.epoch, "closed")

    async def _activity(self, request: web.Request) -> Any:
        lease = _convert(await read_json(request), _Lease)
        seen = self._book.activity(lease.rollout, lease.attempt, lease.epoch)
        return replace(seen, sandbox_port=self._sandbox_port)

    async def _servers(self, request: web.Request) -> Any:
        return {
            "servers": [
                {
                    "url": server.url,
                    "version": server.version,
                    "ready": server.ready,
                    "answers": server.answers,
                    "delay_s": round(server.delay, 3),
                    "in_flight": len(server.flights),
                }
                for server in self._pool.servers
            ]
        }

    async def _ready(self, request: web.Request) -> web.Response:
        """Who is answered 200 reaches a gateway that takes sessions; calls wait where no rollout server is ready.

        One that drains says 503: whoever looks for a gateway for a new session is to take another, and a cluster that takes gateways one at
        a time is to leave the others alone meanwhile. Its own sessions go on: they come to its address, which no readiness hides
        (`publishNotReadyAddresses`), and the probes that end a process ask at its metrics port, which says 200.
        """
        if self._orders.drains:
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
