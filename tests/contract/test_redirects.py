"""A rollout server or gateway that sends its client elsewhere: nothing follows, so no other address gets the key or another request."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchestrator.gateway.servers.client import RolloutServerBroken
from orchestrator.gateway_client import GatewayAdmin, GatewayFailed, SessionBudget
from tests.contract.answering import answering
from tests.contract.test_odd_replies import ROUTES

pytestmark = pytest.mark.anyio
STATUSES = (301, 302, 303, 307, 308)


class Elsewhere:
    """Answers the first path with a redirect, and counts the requests that follow it."""

    def __init__(self, status: int) -> None:
        self._status, self.followed = status, 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/elsewhere":
            self.followed += 1
            return web.json_response({})
        return web.Response(status=self._status, headers={"Location": "/elsewhere"})


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("route", ROUTES)
async def test_a_rollout_servers_redirect_is_its_fault(route: str, status: int) -> None:
    elsewhere = Elsewhere(status)
    async with answering(elsewhere.answer, key="secret") as client:
        with pytest.raises(
            RolloutServerBroken, match=f"status {status}: it sends this gateway to another address"
        ):
            await ROUTES[route](client)
    assert not elsewhere.followed


@pytest.mark.parametrize("status", STATUSES)
async def test_a_gateways_redirect_is_its_fault(status: int) -> None:
    elsewhere = Elsewhere(status)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", elsewhere.answer)
    async with TestServer(app) as server, GatewayAdmin(str(server.make_url("/")), "secret") as admin:
        with pytest.raises(GatewayFailed, match="it sends the runner to another address"):
            await admin.open_session(
                run="first", rollout=1, attempt=1, epoch=1, budget=SessionBudget(max_turns=1, max_context=0)
            )
    assert not elsewhere.followed
