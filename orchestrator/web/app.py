"""The application: API routes, pages and static files behind the guard."""

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from orchestrator.web.files import static_file
from orchestrator.web.guard import Guard
from orchestrator.web.requests import Route
from orchestrator.web.site import Site

BODY_LIMIT = 64 * 1024


def application(site: Site, routes: Sequence[Route]) -> web.Application:
    """The API of `routes`, static files and pages. Any other path is a page: the router in the browser resolves it."""
    app = web.Application(
        client_max_size=BODY_LIMIT, middlewares=[Guard(site.keys, site.metrics, site.hosts).middleware()]
    )
    for route in routes:
        app.router.add_route(route.method, route.path, _bound(site, route))
    app.router.add_get("/api/{rest:.*}", _not_found)
    app.router.add_get("/static/{name:.*}", _static)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/{rest:.*}", _page)
    return app


def _bound(site: Site, route: Route) -> Any:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await route.serve(site, request)

    return handle


async def _static(request: web.Request) -> web.StreamResponse:
    return static_file(request, request.match_info["name"])


async def _page(request: web.Request) -> web.StreamResponse:
    if request.path == "/favicon.ico":
        return static_file(request, "icon.svg")
    return static_file(request, "index.html")


async def _not_found(request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


async def _healthz(request: web.Request) -> web.StreamResponse:
    return web.Response(text="penstock\n")
