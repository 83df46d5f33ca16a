"""An HTTP proxy in front of the rollout server. It writes every completion to the ledger before the gateway gets it, and every completion
that was cut off while the server worked on it.

| produces | waits for | unblocked by |
|---|---|---|
| answers of the rollout server, lines of the ledger | requests of the gateway | the rollout server |

The gateway reaches it through a relay, as on every other connection. Partitions act in that relay.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
from aiohttp import web

from ops.lab.chaos.ledger import Ledger
from ops.lab.chaos.regenerated import AttemptCall
from orchestrator.deploy.embedded.ports import LOOPBACK, free_port

_HOP = {"connection", "content-length", "transfer-encoding", "keep-alive", "host"}


class Proxy:
    """Made by `proxying`. `began`: when the newest completion was requested, Unix seconds. `delivered`: (request time, delivery time) of the newest
    delivered completion."""

    def __init__(self, ledger: Ledger) -> None:
        self.to = ""
        self.port = 0
        self.in_flight = 0
        self.began = 0.0
        self.delivered = (0.0, 0.0)
        self._ledger = ledger
        self._session: aiohttp.ClientSession | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Forward any request and its answer."""
        assert self._session is not None
        body = await request.read()
        attempt = whose(body) if request.path == "/generate" else None
        completion = attempt is not None
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        self.in_flight += completion
        started = time.time()
        if completion:
            self.began = started
        try:
            async with self._session.request(
                request.method, self.to + request.path_qs, data=body or None, headers=headers
            ) as answer:
                raw = await answer.read()
                if attempt is not None and answer.status == 200:
                    self._write(raw, started, attempt)
                forwarded = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP}
                return web.Response(status=answer.status, body=raw, headers=forwarded)
        except (aiohttp.ClientError, OSError):
            if attempt is not None:
                self._ledger.called(AttemptCall(attempt, None, time.time() - started))
            # The server is down: the gateway sees a connection that ends, as it would without the proxy.
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        finally:
            self.in_flight -= completion

    def _write(self, raw: bytes, began: float, of: str) -> None:
        try:
            ids = tuple(msgspec.json.decode(raw)["output_ids"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return  # an error's body, or several completions at once, which the gateway never requests
        now = time.time()
        self._ledger.called(AttemptCall(of, ids, now - began))
        self.delivered = (began, now)


def whose(body: bytes) -> str | None:
    """The attempt (rollout:attempt) that a request generates for: its routing key. None for a canary, which belongs to no attempt.

    >>> whose(b'{"routing_key": "12:1", "input_ids": [1]}')
    '12:1'
    """
    try:
        key = msgspec.json.decode(body).get("routing_key")
    except (msgspec.DecodeError, AttributeError):
        return None
    return key if isinstance(key, str) else None


@asynccontextmanager
async def proxying(ledger: Ledger) -> AsyncIterator[Proxy]:
    """A proxy that listens. The caller must set `to` to the server's URL."""
    proxy = Proxy(ledger)
    proxy.port = free_port()
    application = web.Application(client_max_size=1 << 26)
    application.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
        auto_decompress=False,
    ) as session:
        proxy._session = session
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, proxy.port).start()
        try:
            yield proxy
        finally:
            await runner.cleanup()
