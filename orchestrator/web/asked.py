"""What an API module gets and gives: a question with its run and connection, an order with its body; refusals as one sentence.

    async def answer(asked: Asked) -> Group:
        return await look.group(asked.connection, asked.run.run_id, asked.key("group_id"))

    ROUTES = [look("/api/groups/{group_id}", answer)]

`?run=NAME` asks for another run of the same database; without it, it is the run of the dashboard's configuration.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.config import Config, as_kept
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.ids import is_name
from orchestrator.contracts.numbers import INT8, whole
from orchestrator.pool.runs import Run, find_run

if TYPE_CHECKING:
    from orchestrator.web.app import Site

WORDS = 500  # characters of a person's reason


class Refused(PenstockError):
    """Why a request is not answered, for a person; `status` is HTTP's."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _Parameters:
    """Checked parameters of a request, from its path and its query."""

    request: web.Request

    def key(self, name: str) -> int:
        """A number in the path that names something."""
        text = self.request.match_info[name]
        what = name.removesuffix("_id").removesuffix("_no").replace("_", " ")
        try:
            return whole(text, most=INT8)
        except ValueError:
            shown = repr(text) if len(text) <= 40 else f"'{text[:40]}…'"
            raise Refused(
                404, f"there is no {what} {shown}: a {what} is named by its number, from 0 to {INT8}"
            ) from None

    def text(self, name: str, default: str = "", *, longest: int = 200) -> str:
        """A word of the query."""
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
        """One of several words of the query; `default` when it is absent or empty."""
        text = self.request.query.get(name, "")
        if text and text not in among:
            raise Refused(400, f"{name} must be one of {', '.join(among)}, not {text[:40]!r}")
        return text or default


@dataclass(frozen=True, slots=True)
class Asked(_Parameters):
    """A question. `connection` is a read-only transaction with a time limit."""

    site: "Site"
    request: web.Request
    connection: AsyncConnection
    run: Run

    @property
    def config(self) -> Config:
        """What the run goes by; of another run than the dashboard's own, what it was created with."""
        own = self.run.name == self.site.run
        return as_kept(self.run.config, self.site.config) if own else Config.from_json(self.run.config)


@dataclass(frozen=True, slots=True)
class Order(_Parameters):
    """Something to be done: `run` is the name of a run, `who` the person as far as this machine knows, `body` a JSON object."""

    site: "Site"
    request: web.Request
    run: str
    who: str
    body: dict[str, Any]

    @property
    def reason(self) -> str:
        """The person's own words, which every order may have."""
        given = self.body.get("reason", "")
        if not isinstance(given, str) or len(given) > WORDS or "\0" in given:
            raise Refused(400, f"reason must be text of at most {WORDS} characters")
        return given.strip() or "no reason given"


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the API. `serve` gets the site and the request."""

    method: str
    path: str
    serve: "Callable[[Site, web.Request], Awaitable[web.StreamResponse]]"


def look(path: str, answer: Callable[[Asked], Awaitable[object]]) -> Route:
    """A question: GET, answered by what `answer` returns, as JSON."""

    async def serve(site: "Site", request: web.Request) -> web.StreamResponse:
        async def work(connection: AsyncConnection) -> object:
            run = await asked_run(connection, site, request)
            return await answer(Asked(site, request, connection, run))

        return json_response(await site.database.read(work))

    return Route("GET", path, serve)


def raw(path: str, serve: "Callable[[Site, web.Request], Awaitable[web.StreamResponse]]") -> Route:
    """A question whose answer is no JSON."""
    return Route("GET", path, serve)


def steer(path: str, obey: Callable[[Order], Awaitable[object]]) -> Route:
    """An order: POST with a JSON object, behind the guard's conditions for steering; answered by what `obey` returns."""

    async def serve(site: "Site", request: web.Request) -> web.StreamResponse:
        raw_body = await request.read()
        try:
            body = msgspec.json.decode(raw_body or b"{}")
        except msgspec.DecodeError:
            raise Refused(400, "the body must be a JSON object") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body must be a JSON object")
        return json_response(await obey(Order(site, request, run_name(site, request), site.who, body)))

    return Route("POST", path, serve)


def run_name(site: "Site", request: web.Request) -> str:
    """The run that a request is about. Refused when it cannot be one's name."""
    name = request.query.get("run", "") or site.run
    if not is_name(name):
        raise Refused(
            400, f"{name[:40]!r} cannot name a run: names are 1 to 32 characters of a-z, 0-9, _ and -"
        )
    return name


async def asked_run(connection: AsyncConnection, site: "Site", request: web.Request) -> Run:
    """The run that a request is about. Refused (404) when there is none."""
    name = run_name(site, request)
    found = await find_run(connection, name)
    if found is None:
        raise Refused(404, f"there is no run {name!r} in this database")
    return found


def json_response(value: object, status: int = 200) -> web.Response:
    """`value` as JSON; what is not finite is null."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
