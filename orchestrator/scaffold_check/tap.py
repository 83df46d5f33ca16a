"""A proxy between a program and the gateway: it forwards requests, records them, and fails on purpose.

Only one request at a time is on its way to the rollout server, so that each request gets the script's reply for it; their answers may overlap.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import aiohttp
import anyio
import msgspec
from aiohttp import web

from orchestrator.gateway.http.dialects.base import agent_of
from orchestrator.gateway.http.encodings import Larger, codings, decoded
from orchestrator.gateway.messages.requests import body_digest
from orchestrator.gateway.problems import Problem
from orchestrator.scaffold_check.seen import SeenRequest, read, wire_of
from orchestrator.scripted.reply import Reply
from orchestrator.scripted.server import ScriptedServer, Ticket

Fault = Literal["unknown", "429", "503", "cut", "duplicate"]
Faults = Callable[[int, SeenRequest], Fault | None]

AUXILIARY = -1  # passed to `faults` as the number of every auxiliary request
_NO_TOKEN = "x" * 43
_HOP = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_PINGS = (b"event: ping", b"\n:", b"event: response.in_progress")
_TITLE = "A title"
_LONGEST = 1 << 28  # bytes of a body


@dataclass(slots=True, kw_only=True)
class Request:
    """One completion request. `number` counts the policy's requests of one script; None: an auxiliary request. `digest`: the request digest of its
    step."""

    seen: SeenRequest
    body_sha: str
    digest: str
    number: int | None
    fault: Fault | None
    status: int = 0
    pings: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """The policy's replies, and the faults. `faults` gets the number of a request."""

    reply: Callable[[SeenRequest], Reply]
    faults: Faults = lambda number, seen: None


@dataclass(slots=True, kw_only=True)
class Tap:
    """`requests` are those of the current script. `begins_at`: number of policy replies at the start of the program's histories."""

    gateway: str
    server: ScriptedServer
    auxiliary: tuple[str, ...]
    script: Script | None = None
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    begins_at: int | None = None
    _turn: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(1))

    def play(self, script: Script) -> None:
        """Play this script from now on."""
        self.script, self.requests = script, []

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator["Tap"]:
        """Serve on `socket`, for sandboxes, and on a free loopback port, for runners."""
        app = web.Application(client_max_size=_LONGEST)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        # The gateway gets a compressed body as it was sent.
        runner = web.AppRunner(app, handler_cancellation=True, auto_decompress=False)
        await runner.setup()
        try:
            socket.parent.mkdir(mode=0o755)
            await web.UnixSite(runner, str(socket)).start()
            socket.chmod(0o666)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = next(f"http://127.0.0.1:{a[1]}" for a in runner.addresses if isinstance(a, tuple))
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        wire = wire_of(request.path)
        if wire is None or self.script is None:
            return await self._pass(request, raw, None)
        try:
            plain = decoded(raw, codings(request.headers.get("Content-Encoding", "")), _LONGEST)
            body = msgspec.json.decode(plain)
            seen, digest = read(wire, body), body_digest(wire, body, agent_of(request.headers))
        except (msgspec.DecodeError, AttributeError, Problem, Larger):  # the gateway refuses it
            return await self._pass(request, raw, None)
        rules = self.auxiliary
        own = not any(
            fnmatchcase(seen.first, r.removeprefix("text:"))
            if r.startswith("text:")
            else fnmatchcase(seen.model, r)
            for r in rules
        )
        if own:  # some programs start with an invented conversation as an example
            self.begins_at = seen.turn if self.begins_at is None else self.begins_at
            seen = replace(seen, turn=max(0, seen.turn - self.begins_at))
        number = sum(r.number is not None for r in self.requests) if own else None
        fault = self.script.faults(AUXILIARY if number is None else number, seen)
        record = Request(
            seen=seen, body_sha=sha256(plain).hexdigest(), digest=digest, number=number, fault=fault
        )
        self.requests.append(record)
        if fault in ("429", "503"):
            record.status = int(fault)
            return _refusal(seen, record.status)
        reply = self.script.reply(seen) if own else Reply(text=_TITLE)
        await self._turn.acquire()
        ticket = self.server.expect(reply)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._free, ticket)
            if fault == "duplicate":
                await self._pass(request, raw, None, answer=False)
                ticket.taken.set()
                response = await self._pass(request, raw, record, {"x-stainless-retry-count": "1"})
            elif fault == "cut":
                response = await self._cut(request, raw, ticket)
            else:
                response = await self._pass(request, raw, record, unknown=fault == "unknown")
            ticket.taken.set()
        return response

    async def _free(self, ticket: Ticket) -> None:
        """Release the next request once the server has taken this one's reply, or this request has ended without it."""
        try:
            await ticket.taken.wait()
        finally:
            self._turn.release()

    async def _cut(self, request: web.Request, raw: bytes, ticket: Ticket) -> web.StreamResponse:
        """Break the program's connection during the policy's reply; the connection to the gateway breaks as well."""
        with anyio.move_on_after(30):
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    await self._pass(request, raw, None, answer=False)

                tasks.start_soon(ask)
                await ticket.taken.wait()
                tasks.cancel_scope.cancel()
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=502)

    async def _pass(
        self,
        request: web.Request,
        raw: bytes,
        record: Request | None,
        headers: Mapping[str, str] | None = None,
        *,
        unknown: bool = False,
        answer: bool = True,
    ) -> web.StreamResponse:
        """Forward a request and stream its answer back (`answer`). `unknown`: use a token that does not exist."""
        more = dict(headers or {})
        sent = {k: v for k, v in request.headers.items() if k.lower() not in _HOP | set(more)} | more
        path = request.raw_path
        if unknown:
            parts = path.split("/")
            if len(parts) > 2 and parts[1] == "s":
                parts[2] = _NO_TOKEN
            path = "/".join(parts)
            sent |= {k: f"Bearer {_NO_TOKEN}" for k in sent if k.lower() == "authorization"}
            sent |= {k: _NO_TOKEN for k in sent if k.lower() == "x-api-key"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            async with http.request(
                request.method, self.gateway + path, data=raw, headers=sent, allow_redirects=False
            ) as upstream:
                if record is not None:
                    record.status = upstream.status
                if not answer:
                    await upstream.read()
                    return web.Response()
                forwarded = {
                    k: v
                    for k, v in upstream.headers.items()
                    if k.lower() in ("content-type", "cache-control")
                }
                response = web.StreamResponse(status=upstream.status, headers=forwarded)
                with contextlib.suppress(ConnectionError):  # the program has left
                    await response.prepare(request)
                    opening = True  # on one wire the opening looks like keep-alives
                    async for chunk in upstream.content.iter_any():
                        if record is not None and not opening:
                            record.pings += sum((b"\n" + chunk).count(ping) for ping in _PINGS)
                        opening = False
                        await response.write(chunk)
                    await response.write_eof()
                return response


def _refusal(seen: SeenRequest, status: int) -> web.Response:
    """An error in the format of the wire."""
    message = "try again" if status == 503 else "too many requests"
    kind = "rate_limit_error" if status == 429 else "overloaded_error"
    error: dict[str, Any] = {"type": kind, "message": message}
    if seen.wire == "anthropic":
        return web.json_response({"type": "error", "error": error}, status=status)
    return web.json_response({"error": {**error, "code": "unavailable", "param": None}}, status=status)
