"""A rollout server that answers as a test wants."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from orchestrator.gateway.servers.client import RolloutServerClient

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(answer: Answer, **options: Any) -> AsyncIterator[RolloutServerClient]:
    """A client, with `options`, of a server that answers every request with `answer`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with (
        TestServer(app) as server,
        RolloutServerClient(str(server.make_url("/")), **options) as client,
    ):
        yield client


def always(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """Answers with `body`: bytes and text as they are, other values as JSON."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        if isinstance(body, bytes):
            return web.Response(body=body, status=status, headers=headers)
        if isinstance(body, str):
            return web.Response(text=body, status=status, headers=headers)
        return web.json_response(body, status=status, headers=headers)

    return answer
