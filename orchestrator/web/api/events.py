"""/api/events: server-sent events, a tick when something may have changed."""

import anyio
import msgspec
from aiohttp import web

from orchestrator.web.guard import decorate
from orchestrator.web.requests import get_raw
from orchestrator.web.site import Site

KEEP_ALIVE_S = 15.0


async def _events(site: Site, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    decorate(response, api=True)
    with site.changes.listening() as ticks:
        try:
            await response.prepare(request)
            await response.write(b"retry: 2000\n\n")
            while True:
                tick = None
                with anyio.move_on_after(KEEP_ALIVE_S):
                    tick = await ticks.receive()
                line = (
                    b"data: " + msgspec.json.encode(tick) + b"\n\n"
                    if tick is not None
                    else b": still here\n\n"
                )
                await response.write(line)
        except ConnectionError:  # the browser disconnected
            return response


ROUTES = [get_raw("/api/events", _events)]
