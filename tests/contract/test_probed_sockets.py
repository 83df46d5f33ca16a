"""A connection on which a call may wait without a timeout breaks once its other end has vanished."""

import os
import socket
from typing import Any

import aiohttp
import pytest

from orchestrator.gateway_client import NativeLlm
from tests.contract.answering import always, answering

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The gateway uses uvloop."""
    return "asyncio", {"use_uvloop": request.param}


def probes_of(session: aiohttp.ClientSession | None) -> list[int]:
    """Of its one open connection: whether it is probed, seconds before the first probe and between two, probes."""
    assert session is not None and session.connector is not None
    ((protocol, _),) = (kept for list_of in session.connector._conns.values() for kept in list_of)
    assert protocol.transport is not None
    fileno = os.dup(protocol.transport.get_extra_info("socket").fileno())
    with socket.socket(fileno=fileno) as same:  # uvloop's own sockets do not tell
        kept_alive = same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        return [kept_alive, *(same.getsockopt(socket.IPPROTO_TCP, option) for option in options)]


@pytest.mark.parametrize("user", [None, os.getuid()])
async def test_a_connection_to_a_rollout_server_is_probed(user: int | None) -> None:
    async with answering(always({"weight_version": "0"}), user=user) as client:
        await client.model_info()
        assert probes_of(client._session) == [1, 30, 10, 3]


async def test_a_connection_to_the_gateway_is_probed() -> None:
    async with answering(always({})) as server, NativeLlm(server.base_url, "token") as llm:
        assert llm._http is not None
        async with llm._http.get(server.base_url) as answer:
            await answer.read()
        assert probes_of(llm._http) == [1, 30, 10, 3]
