"""Input and output of an API module: a query with its run and connection, a command with its body; refusals as one sentence.

    async def answer(query: Query) -> Group:
        return await groups.group(query.connection, query.run.run_id, query.key("group_id"))

    ROUTES = [get("/api/groups/{group_id}", answer)]

`?run=NAME` selects another run of the same database; the default is the run of the dashboard's configuration.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.ids import NAME_RULE, is_name
from orchestrator.contracts.limits import MAX_GIVEN_REASON
from orchestrator.contracts.numbers import INT8, whole
from orchestrator.contracts.quote import quoted
from orchestrator.pool.runs import StoredRun, find_run
from orchestrator.runtime.json_response import json_response
from orchestrator.settings.config import Config, effective
from orchestrator.settings.newest_start import newest_config
from orchestrator.web.site import Site


class Refused(PenstockError):
    """Why a request is refused, as a sentence for a person; `status`: the HTTP status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _Parameters:
    """Checked parameters of a request, from its path and its query."""

    request: web.Request

    def key(self, name: str) -> int:
        """A number in the path that identifies something."""
        text = self.request.match_info[name]
        noun = name.removesuffix("_id").removesuffix("_no").replace("_", " ")
        try:
            return whole(text, most=INT8)
        except ValueError:
            shown = repr(text) if len(text) <= 40 else f"'{text[:40]}…'"
            raise Refused(
                404, f"{noun} {shown} does not exist: a {noun} is named by its number, from 0 to {INT8}"
            ) from None

    def text(self, name: str, default: str = "", *, longest: int = 200) -> str:
        """A string of the query."""
        found = self.request.query.get(name, default)
        if len(found) > longest:
            raise Refused(400, f"{name} must be text of at most {longest} characters")
        if "\0" in found:
            raise Refused(400, f"{name} must not hold a NUL character (%00)")
        return found

    def number(self, name: str, default: int, *, least: int = 0, most: int = INT8) -> int:
        """A whole number of the query."""
        text = self.request.query.get(name, "")
        if not text:
            return default
        try:
            return whole(text, least=least, most=most)
        except ValueError as error:
            raise Refused(400, f"{name} {error}") from None

    def choice(self, name: str, among: Sequence[str], default: str = "") -> str:
        """One of several strings of the query; `default` if it is absent or empty."""
        text = self.request.query.get(name, "")
        if text and text not in among:
            raise Refused(400, f"{name} must be one of {', '.join(among)}, not {quoted(text)}")
        return text or default


def config_of(site: Site, run: StoredRun) -> Config:
    """The run's effective configuration; for another run than the dashboard's own, that of its orchestrator's newest start. ConfigurationError if
    this code cannot read it."""
    if run.name == site.run:
        return effective(run.config, site.config)
    return newest_config(run.config, run.process_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query(_Parameters):
    """A GET request. `connection` is a read-only transaction with a time limit."""

    site: Site
    request: web.Request
    connection: AsyncConnection
    run: StoredRun

    @property
    def config(self) -> Config:
        """The run's effective configuration (`config_of`)."""
        return config_of(self.site, self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest(_Parameters):
    """A POST request: `run`: the name of a run; `who`: the person, as far as this machine knows; `body`: a JSON object."""

    site: Site
    request: web.Request
    run: str
    who: str
    body: dict[str, Any]

    @property
    def reason(self) -> str:
        """The person's reason, which every command may have."""
        given = self.body.get("reason", "")
        if not isinstance(given, str) or len(given) > MAX_GIVEN_REASON or "\0" in given:
            raise Refused(400, f"reason must be text of at most {MAX_GIVEN_REASON} characters")
        return given.strip() or "no reason given"


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the API. `serve` takes the site and the request."""

    method: str
    path: str
    serve: Callable[[Site, web.Request], Awaitable[web.StreamResponse]]


def get(path: str, answer: Callable[[Query], Awaitable[object]]) -> Route:
    """A GET route; its answer is the return value of `answer` as JSON."""

    async def serve(site: Site, request: web.Request) -> web.StreamResponse:
        async def work(connection: AsyncConnection) -> object:
            run = await requested_run(connection, site, request)
            return await answer(Query(site=site, request=request, connection=connection, run=run))

        return json_response(await site.database.read(work))

    return Route("GET", path, serve)


def get_raw(path: str, serve: Callable[[Site, web.Request], Awaitable[web.StreamResponse]]) -> Route:
    """A GET route whose answer is not JSON: `serve` makes the response."""
    return Route("GET", path, serve)


def post(
    path: str, execute: Callable[[CommandRequest], Awaitable[object]], keys: Sequence[str] = ()
) -> Route:
    """A POST route with a JSON object as its body, behind the guard's conditions for steering; its answer is the return value of `execute`.
    The body may have `keys` and a reason, the query `run`: any other key is refused by name."""
    known = (*keys, "reason")

    async def serve(site: Site, request: web.Request) -> web.StreamResponse:
        raw_body = await request.read()
        try:
            body = msgspec.json.decode(raw_body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refused(400, "the body must be a JSON object") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body must be a JSON object")
        _check_keys("key", body, known)
        _check_keys("parameter", request.query, ("run",))
        return json_response(
            await execute(
                CommandRequest(
                    site=site, request=request, run=run_name(site, request), who=site.who, body=body
                )
            )
        )

    return Route("POST", path, serve)


def _check_keys(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise Refused(400, f"unknown {what} {quoted(name)}: this order takes {', '.join(known)}")


def run_name(site: Site, request: web.Request) -> str:
    """The name of the requested run. Refused if it is not a valid name."""
    name = request.query.get("run", "") or site.run
    if not is_name(name):
        raise Refused(400, f"{quoted(name)} cannot name a run: use {NAME_RULE}")
    return name


async def requested_run(connection: AsyncConnection, site: Site, request: web.Request) -> StoredRun:
    """The requested run. Refused (404) if it does not exist."""
    name = run_name(site, request)
    found = await find_run(connection, name)
    if found is None:
        raise Refused(404, f"run {quoted(name)} does not exist in this database")
    return found
