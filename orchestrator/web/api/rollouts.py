"""/api/rollouts: the list, one rollout, and what its page fetches when somebody looks at it: steps, whole texts, tokens, files, curl."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.look import files, pieces, rollouts, search, steps, tokens, whole_texts
from orchestrator.look.filters import Filters
from orchestrator.look.texts import SHOWN
from orchestrator.web.app import Site
from orchestrator.web.asked import Asked, asked_run, look, raw
from orchestrator.web.saved import saved

LONGEST_FILTER = 2_000


@dataclass(frozen=True, slots=True)
class Text:
    """One text, whole."""

    text: str


def filters_of(asked: Asked, *beside: str) -> Mapping[str, str]:
    """The query without what pages and runs are asked for by."""
    return {
        name: asked.text(name, longest=LONGEST_FILTER)
        for name in asked.request.query
        if name not in ("run", "before", "n", *beside)
    }


async def _list(asked: Asked) -> search.RolloutPage:
    before = asked.number("before", 0)
    return await search.rollout_list(
        asked.connection,
        asked.run.run_id,
        Filters.of(filters_of(asked)),
        before=before or None,
        n=asked.number("n", search.PAGE, least=1, most=search.LARGEST_PAGE),
    )


async def _rollout(asked: Asked) -> rollouts.Rollout:
    attempt = asked.number("attempt", 0, most=32767)
    return await rollouts.rollout(
        asked.connection, asked.run.run_id, asked.key("rollout_id"), attempt or None
    )


def _step(asked: Asked) -> tuple[int, int, int, int]:
    """(run, rollout, attempt, step) of a question about one step."""
    attempt = asked.number("attempt", 1, least=1, most=32767)
    return asked.run.run_id, asked.key("rollout_id"), attempt, asked.number("step", 0, most=2**31 - 1)


async def _steps(asked: Asked) -> steps.StepPage:
    run_id, rollout_id, attempt, first = _step(asked)
    n = asked.number("n", steps.PAGE, least=1, most=100)
    limit = asked.number("limit", SHOWN, least=100, most=1_000_000)
    return await steps.steps(asked.connection, run_id, rollout_id, attempt, first=first, n=n, limit=limit)


async def _text(asked: Asked) -> Text:
    part = asked.text("part", "content")
    key = _step(asked)
    said = await whole_texts.whole_text(asked.connection, *key[:3], part)
    return Text(await steps.whole_text(asked.connection, *key, part) if said is None else said)


async def _curl(asked: Asked) -> Text:
    return Text(await steps.curl(asked.connection, *_step(asked)))


async def _token_map(asked: Asked) -> tokens.TokenMap:
    return await tokens.token_map(asked.connection, *_step(asked))


async def _tokens(asked: Asked) -> tokens.TokenPage:
    spelled = await pieces.spelling(asked.connection, asked.run.run_id)
    start = asked.number("start", 0, most=2**31 - 1)
    n = asked.number("n", tokens.PAGE, least=1, most=tokens.LARGEST_PAGE)
    page = await tokens.tokens(asked.connection, *_step(asked), spelled.pieces, start=start, n=n)
    return replace(page, note=spelled.note)


async def _file(site: Site, request: web.Request) -> web.StreamResponse:
    async def work(connection: AsyncConnection) -> bytes:
        asked = Asked(site, request, connection, await asked_run(connection, site, request))
        run_id, rollout_id, attempt, _ = _step(asked)
        path = asked.text("path", longest=4_096)
        return await files.file_body(connection, run_id, rollout_id, attempt, path)

    return download(await site.database.read(work), "application/octet-stream", _name(request))


async def _saved(site: Site, request: web.Request) -> web.StreamResponse:
    async def work(connection: AsyncConnection) -> tuple[int, str]:
        asked = Asked(site, request, connection, await asked_run(connection, site, request))
        rollout_id = asked.key("rollout_id")
        attempt = asked.number("attempt", 0, most=32767)
        page = await saved(connection, asked.run.run_id, asked.run.name, rollout_id, attempt or None)
        return rollout_id, page

    rollout_id, page = await site.database.read(work)
    return download(page.encode(), "text/html", f"rollout-{rollout_id}.html")


def download(body: bytes, kind: str, name: str) -> web.Response:
    """A file to keep: never shown inside the dashboard, whatever it holds."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return web.Response(body=body, content_type=kind, charset="utf-8" if kind == "text/html" else None, headers=headers)  # fmt: skip


def _name(request: web.Request) -> str:
    """The last part of a path that an agent chose, as far as it can stand in a header."""
    last = request.query.get("path", "").rpartition("/")[2]
    kept = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in last
    )
    return kept.lstrip(".")[:100] or "file"


ROUTES = [
    look("/api/rollouts", _list),
    raw("/api/rollouts/{rollout_id}.html", _saved),
    look("/api/rollouts/{rollout_id}", _rollout),
    look("/api/rollouts/{rollout_id}/steps", _steps),
    look("/api/rollouts/{rollout_id}/text", _text),
    look("/api/rollouts/{rollout_id}/curl", _curl),
    look("/api/rollouts/{rollout_id}/token-map", _token_map),
    look("/api/rollouts/{rollout_id}/tokens", _tokens),
    raw("/api/rollouts/{rollout_id}/file", _file),
]
