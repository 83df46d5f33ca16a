"""A connection on which a call may wait without a timeout breaks once its other end has vanished."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from orchestrator.bus.feed import in_background
from orchestrator.gateway_client import NativeLlm
from orchestrator.runner.bridge import bridged
from sandboxes.inside.supervisor import GATEWAY, Supervisor
from tests.contract.answering import always, answering
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The gateway uses uvloop."""
    return "asyncio", {"use_uvloop": request.param}


def probes_of(session: aiohttp.ClientSession | None) -> list[int]:
    """Of its one open connection."""
    assert session is not None and session.connector is not None
    ((protocol, _),) = (kept for list_of in session.connector._conns.values() for kept in list_of)
    assert protocol.transport is not None
    return probes(protocol.transport.get_extra_info("socket").fileno())


def probes(fileno: int) -> list[int]:
    """Of a socket: whether it is probed, seconds before the first probe and between two, probes."""
    with socket.socket(fileno=os.dup(fileno)) as same:  # uvloop's own sockets do not tell
        kept_alive = same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        return [kept_alive, *(same.getsockopt(socket.IPPROTO_TCP, option) for option in options)]


def is_socket(fileno: int) -> bool:
    with suppress(OSError):  # closed since it was listed
        return stat.S_ISSOCK(os.fstat(fileno).st_mode)
    return False


def connections_to(port: int) -> Iterator[int]:
    """Descriptors of this process that are connected to a port of loopback."""
    for name in os.listdir("/proc/self/fd"):
        if not is_socket(int(name)):
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as same:
            if same.family == socket.AF_INET and same.getpeername() == ("127.0.0.1", port):
                yield int(name)


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


async def test_connections_of_sandboxes_to_a_gateway_on_another_host_are_probed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        port = gateway.getsockname()[1]
        async with bridged(tmp_path / "s", lambda: ("127.0.0.1", port)):
            async with await anyio.connect_unix(tmp_path / "s"):
                await eventually(
                    lambda: {tuple(probes(each)) for each in connections_to(port)} == {(1, 30, 10, 3)}
                )


async def test_connections_of_a_pods_programs_to_the_gateway_are_probed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        port = gateway.getsockname()[1]
        session = {
            "uid": os.getuid(),
            "grace_s": 60,
            "first_s": 60,
            "gateway": f"127.0.0.1:{port}",
            "env": {},
        }
        place = tmp_path / GATEWAY.lstrip("/")
        async with in_background(Supervisor(session, "", tmp_path).run):
            await eventually(place.exists)
            async with await anyio.connect_unix(place):
                await eventually(
                    lambda: {tuple(probes(each)) for each in connections_to(port)} == {(1, 30, 10, 3)}
                )
