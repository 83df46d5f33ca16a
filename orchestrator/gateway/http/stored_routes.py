"""Routes for objects that the Responses wire calls stored: a response of this session, the items before it, its deletion.

GET    /v1/responses/<id>                 the response again, without the tools and instructions of its request
GET    /v1/responses/<id>/input_items     ?order=desc|asc, limit (1 to 100), after
DELETE /v1/responses/<id>                 later requests cannot refer to it; its step stays recorded

They are read and written on the event loop in their session's turn, like a request of any wire.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, web

from orchestrator.contracts.numbers import whole
from orchestrator.contracts.quote import quoted
from orchestrator.gateway.http.base import problem_response, token_of
from orchestrator.gateway.http.dialects.errors import openai_error
from orchestrator.gateway.http.dialects.fields import check_included
from orchestrator.gateway.http.dialects.responses import finished_response, output_items
from orchestrator.gateway.http.stored import input_items, name_step, node_of, reply_of
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.gateway.sessions.node import Node
from orchestrator.gateway.sessions.registry import SessionRegistry
from orchestrator.gateway.sessions.session import Session
from orchestrator.gateway.sessions.store import SessionStore
from orchestrator.runtime.json_response import json_response

MAX_PAGE, DEFAULT_PAGE = 100, 20
Answer = Callable[[web.Request, Session, str, Node], Any]


class StoredRoutes:
    """The handlers."""

    def __init__(self, sessions: SessionRegistry, store: SessionStore) -> None:
        self._sessions = sessions
        self._store = store

    def routes(self, base: str) -> list[web.RouteDef]:
        """The routes below `base`, which may contain the token."""
        path = base + "/v1/responses/{response}"
        return [
            web.get(path, self._handler(self._response)),
            web.delete(path, self._handler(self._delete)),
            web.get(path + "/input_items", self._handler(self._items)),
        ]

    async def name(self, session: Session, identifier: str, step: int) -> None:
        """Before a response is served: its id names its step, after a restart too."""
        if name_step(session, identifier, step):
            await self._store.save_progress(session)

    def _handler(self, answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                session = await self._sessions.find(token_of(request))
                await session.turn()
                session.check_open()
                with session.working():
                    response = json_response(self._answered(answer, request, session))
                if request.method == hdrs.METH_DELETE:
                    await self._store.save_progress(session)
                return response
            except Problem as problem:
                return problem_response(openai_error(problem), problem)

        return handle

    @staticmethod
    def _answered(answer: Answer, request: web.Request, session: Session) -> Any:
        identifier = request.match_info["response"]
        node = node_of(session, identifier)
        if node is None:
            raise Problem(404, "not_found", f"no response {quoted(identifier)} was served in this session")
        check_included(request.query.getall("include", []) + request.query.getall("include[]", []))
        return answer(request, session, identifier, node)

    def _response(self, request: web.Request, session: Session, identifier: str, node: Node) -> Any:
        query = request.query
        streamed = query.get("stream", "false").lower() == "true"
        if name := "stream" if streamed else "starting_after" if "starting_after" in query else None:
            raise bad_request(f"a response that is finished is not streamed again: ask without {name}", name)
        reply = reply_of(node)
        echo = {"id": identifier, "created": 0, "model": "policy", "body": {}}
        return finished_response(echo, reply, list(output_items(reply, {})))

    def _delete(self, request: web.Request, session: Session, identifier: str, node: Node) -> Any:
        session.deleted.add(identifier)
        return {"id": identifier, "object": "response", "deleted": True}

    def _items(self, request: web.Request, session: Session, identifier: str, node: Node) -> Any:
        found = input_items(node)
        if found is None:
            raise Problem(
                404, "not_found", f"the text before {quoted(identifier)} was too large to be recorded"
            )
        order = request.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise bad_request("order must be asc or desc", "order")
        try:
            limit = whole(request.query.get("limit", str(DEFAULT_PAGE)), least=1, most=MAX_PAGE)
        except ValueError as error:
            raise bad_request(f"limit {error}", "limit") from None
        if order == "desc":
            found.reverse()
        if (after := request.query.get("after")) is not None:
            at = next((at for at, item in enumerate(found) if item["id"] == after), None)
            if at is None:
                raise bad_request("after must be the id of an item of this list", "after")
            found = found[at + 1 :]
        page = found[:limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(found) > len(page),
        }
