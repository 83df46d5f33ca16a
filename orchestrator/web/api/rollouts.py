"""/api/rollouts: the list, one rollout, and the parts that its page fetches on demand: steps, whole texts, tokens, files, curl."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.queries import (
    files,
    rollouts,
    search,
    steps,
    token_text,
    tokens,
)
from orchestrator.queries.filters import RolloutFilters
from orchestrator.queries.texts import SHOWN, whole_rollout_text
from orchestrator.web.requests import (
    Query,
    get,
    get_raw,
    requested_run,
)
from orchestrator.web.site import Site
from orchestrator.web.standalone_page import standalone_page

MAX_FILTER = 2_000


@dataclass(frozen=True, slots=True)
class Text:
    """One whole text."""

    text: str


def filters_of(query: Query, *other_params: str) -> Mapping[str, str]:
    """The filters of a query string: all keys except those for the page and the run, and `other_params`."""
    return {
        name: query.text(name, longest=MAX_FILTER)
        for name in query.request.query
        if name not in ("run", "before", "n", *other_params)
    }


async def _list(query: Query) -> search.RolloutPage:
    before = query.number("before", 0)
    return await search.rollout_list(
        query.connection,
        query.run.run_id,
        RolloutFilters.of(filters_of(query)),
        before=before or None,
        n=query.number("n", search.PAGE, least=1, most=search.MAX_PAGE),
    )


async def _rollout(query: Query) -> rollouts.Rollout:
    attempt = query.number("attempt", 0, most=32767)
    return await rollouts.rollout(
        query.connection, query.run.run_id, query.key("rollout_id"), attempt or None
    )


def _step(query: Query) -> tuple[int, int, int, int]:
    """(run, rollout, attempt, step) of a request about one step."""
    attempt = query.number("attempt", 1, least=1, most=32767)
    return query.run.run_id, query.key("rollout_id"), attempt, query.number("step", 0, most=2**31 - 1)


async def _steps(query: Query) -> steps.StepPage:
    run_id, rollout_id, attempt, first = _step(query)
    n = query.number("n", steps.PAGE, least=1, most=100)
    limit = query.number("limit", SHOWN, least=100, most=1_000_000)
    return await steps.steps(query.connection, run_id, rollout_id, attempt, first=first, n=n, limit=limit)


async def _text(query: Query) -> Text:
    part = query.text("part", "content")
    key = _step(query)
    found = await whole_rollout_text(query.connection, *key[:3], part)
    return Text(await steps.whole_step_text(query.connection, *key, part) if found is None else found)


async def _curl(query: Query) -> Text:
    return Text(await steps.curl(query.connection, *_step(query)))


async def _token_map(query: Query) -> tokens.TokenMap:
    return await tokens.token_map(query.connection, *_step(query))


async def _tokens(query: Query) -> tokens.TokenPage:
    spelled = await token_text.run_detokenizer(query.connection, query.run.run_id)
    start = query.number("start", 0, most=2**31 - 1)
    n = query.number("n", tokens.PAGE, least=1, most=tokens.MAX_PAGE)
    page = await tokens.tokens(query.connection, *_step(query), spelled.detokenizer, start=start, n=n)
    return replace(page, note=spelled.note)


async def _file(site: Site, request: web.Request) -> web.StreamResponse:
    async def work(connection: AsyncConnection) -> bytes:
        query = Query(
            site=site,
            request=request,
            connection=connection,
            run=await requested_run(connection, site, request),
        )
        run_id, rollout_id, attempt, _ = _step(query)
        path = query.text("path", longest=4_096)
        return await files.file_body(connection, run_id, rollout_id, attempt, path)

    return download(await site.database.read(work), "application/octet-stream", _name(request))


async def _standalone(site: Site, request: web.Request) -> web.StreamResponse:
    async def work(connection: AsyncConnection) -> tuple[int, str]:
        query = Query(
            site=site,
            request=request,
            connection=connection,
            run=await requested_run(connection, site, request),
        )
        rollout_id = query.key("rollout_id")
        attempt = query.number("attempt", 0, most=32767)
        page = await standalone_page(
            connection, query.run.run_id, query.run.name, rollout_id, attempt or None
        )
        return rollout_id, page

    rollout_id, page = await site.database.read(work)
    return download(page.encode(), "text/html", f"rollout-{rollout_id}.html")


def download(body: bytes, kind: str, name: str) -> web.Response:
    """A file to save: never shown inside the dashboard, regardless of its contents."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return web.Response(
        body=body, content_type=kind, charset="utf-8" if kind == "text/html" else None, headers=headers
    )


def _name(request: web.Request) -> str:
    """The last part of a path that an agent chose, reduced to characters allowed in a header."""
    last = request.query.get("path", "").rpartition("/")[2]
    safe = "".join(
        character if character.isascii() and (character.isalnum() or character in "._-") else "_"
        for character in last
    )
    return safe.lstrip(".")[:100] or "file"


ROUTES = [
    get("/api/rollouts", _list),
    get_raw("/api/rollouts/{rollout_id}.html", _standalone),
    get("/api/rollouts/{rollout_id}", _rollout),
    get("/api/rollouts/{rollout_id}/steps", _steps),
    get("/api/rollouts/{rollout_id}/text", _text),
    get("/api/rollouts/{rollout_id}/curl", _curl),
    get("/api/rollouts/{rollout_id}/token-map", _token_map),
    get("/api/rollouts/{rollout_id}/tokens", _tokens),
    get_raw("/api/rollouts/{rollout_id}/file", _file),
]
