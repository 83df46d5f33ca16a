"""Stands between a program and the gateway: passes on, looks, and fails on purpose.

One request at a time is on its way to the rollout server, so that a script's reply meets the request that it was made for; their answers
overlap as they like.
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

from orchestrator.scaffold_check.policy import Reply
from orchestrator.scaffold_check.seen import Seen, read, wire_of
from orchestrator.scaffold_check.server import ScriptedServer, Ticket

Fault = Literal["unknown", "429", "503", "cut", "duplicate"]
Faults = Callable[[int, Seen], Fault | None]

AUXILIARY = -1  # asked about as the number of every auxiliary request
_NO_TOKEN = "x" * 43
_HOP = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_PINGS = (b"event: ping", b"\n:", b"event: response.in_progress")
_TITLE = "A title"


@dataclass(slots=True)
class Request:
    """One completion request. `number` counts those of one script that are the policy's work; None: an auxiliary one."""

    seen: Seen
    body_sha: str
    number: int | None
    fault: Fault | None
    status: int = 0
    pings: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """What the policy says, and what fails. `faults` is asked with the number of a request."""

    reply: Callable[[Seen], Reply]
    faults: Faults = lambda number, seen: None


@dataclass(slots=True)
class Tap:
    """`requests` are those of the current script. `begins_at`: replies of the policy that the program's histories begin with."""

    gateway: str
    server: ScriptedServer
    auxiliary: tuple[str, ...]
    script: Script | None = None
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    begins_at: int | None = None
    _turn: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(1))

    def play(self, script: Script) -> None:
        """From now on this one."""
        self.script, self.requests = script, []

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator["Tap"]:
        """On `socket`, for sandboxes, and on a free loopback port, for runners."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True)
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
            seen = read(wire, msgspec.json.decode(raw))
        except (msgspec.DecodeError, AttributeError):
            return await self._pass(request, raw, None)
        rules = self.auxiliary
        own = not any(
            fnmatchcase(seen.first, r.removeprefix("text:"))
            if r.startswith("text:")
            else fnmatchcase(seen.model, r)
            for r in rules
        )
        if own:  # some programs begin with a conversation of their own making, as an example
            self.begins_at = seen.turn if self.begins_at is None else self.begins_at
            seen = replace(seen, turn=max(0, seen.turn - self.begins_at))
        number = sum(r.number is not None for r in self.requests) if own else None
        fault = self.script.faults(AUXILIARY if number is None else number, seen)
        record = Request(seen, sha256(raw).hexdigest(), number, fault)
        self.requests.append(record)
        if fault in ("429", "503"):
            record.status = int(fault)
            return _refusal(seen, record.status)
        reply = self.script.reply(seen) if own else Reply(_TITLE)
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
        """Let the next request go once this one's reply is spoken for, or was not asked for at all."""
        try:
            await ticket.taken.wait()
        finally:
            self._turn.release()

    async def _cut(self, request: web.Request, raw: bytes, ticket: Ticket) -> web.StreamResponse:
        """The program's connection breaks while the policy speaks; ours to the gateway does, too."""
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
        """Send a request on, and its answer back as it comes (`answer`), under a token that nobody knows if asked to (`unknown`)."""
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
            async with http.request(request.method, self.gateway + path, data=raw, headers=sent) as upstream:
                if record is not None:
                    record.status = upstream.status
                if not answer:
                    await upstream.read()
                    return web.Response()
                kept = {
                    k: v
                    for k, v in upstream.headers.items()
                    if k.lower() in ("content-type", "cache-control")
                }
                response = web.StreamResponse(status=upstream.status, headers=kept)
                with contextlib.suppress(ConnectionError):  # the program has left
                    await response.prepare(request)
                    opening = True  # which on one wire looks like its signs of life
                    async for chunk in upstream.content.iter_any():
                        if record is not None and not opening:
                            record.pings += sum((b"\n" + chunk).count(ping) for ping in _PINGS)
                        opening = False
                        await response.write(chunk)
                    await response.write_eof()
                return response


def _refusal(seen: Seen, status: int) -> web.Response:
    """An error as the wire spells it."""
    message = "try again" if status == 503 else "too many requests"
    kind = "rate_limit_error" if status == 429 else "overloaded_error"
    error: dict[str, Any] = {"type": kind, "message": message}
    if seen.wire == "anthropic":
        return web.json_response({"type": "error", "error": error}, status=status)
    return web.json_response({"error": {**error, "code": "unavailable", "param": None}}, status=status)
