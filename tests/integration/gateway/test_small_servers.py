"""A rollout server that holds far less than the others: it gets no calls, bounds no context, and its row names it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchestrator.contracts.states import ServerState
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers.client import (
    RolloutServerBroken,
    RolloutServerClient,
    RolloutServerError,
    RolloutServerUnreachable,
)
from orchestrator.gateway.servers.lease import ServerLease
from orchestrator.gateway.servers.pool import ServerPool
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.gateway_client import NativeLlm, SessionBudget
from tests.integration.gateway.rig import Policies, Proxy, open_rig
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]


@asynccontextmanager
async def measured(*reported: Any, reserved: int = 0) -> AsyncIterator[ServerPool]:
    """A pool of servers that report these longest prompts. Those that may get calls are admitted, in this order."""

    async def info(request: web.Request) -> web.Response:
        return web.json_response({"max_req_input_len": reported[int(request.match_info["n"])]})

    app = web.Application()
    app.router.add_get("/{n}/server_info", info)
    async with TestServer(app) as served:
        servers = [
            RolloutServer(RolloutServerClient(str(served.make_url(f"/{n}")))) for n in range(len(reported))
        ]
        pool = ServerPool(servers, GatewayMetrics(), reserved=reserved)
        for server in servers:
            async with server.client:
                with suppress(RolloutServerError):
                    await server.measure()
                    server.admit(1)
        yield pool


@pytest.mark.parametrize(
    ("reported", "ready", "capacity"),
    [
        ((262138, 32762, 32762), (0, 1, 2), 32762),
        ((262138, 32762), (0, 1), 32762),
        ((32768, 32768, 1), (0, 1), 32768),
        ((1, 32768, 32768), (1, 2), 32768),
        ((1000, 32768), (1,), 32768),  # admitted first, and found to be too small once the other one is known
        ((32768, 1000), (0,), 32768),
        ((1000, 1000, 32768), (0, 1, 2), 1000),
        ((1,), (), float("inf")),
        ((300,), (0,), 300),
    ],
)
async def test_a_server_far_below_the_others_gets_no_calls_and_bounds_no_context(
    reported: tuple[int, ...], ready: tuple[int, ...], capacity: float
) -> None:
    async with measured(*reported) as pool:
        assert tuple(n for n, server in enumerate(pool.servers) if server.ready) == ready
        assert pool.capacity == capacity


@pytest.mark.parametrize("odd", [True, False, None, "1", 1.5, [1]])
async def test_what_is_not_a_number_of_tokens_bounds_no_context(odd: Any) -> None:
    async with measured(32768, odd) as pool:
        assert pool.capacity == 32768 and pool.servers[1].capacity is None


async def test_a_small_server_counts_for_nothing_while_it_is_synced_and_when_it_is_measured_again() -> None:
    async with measured(1000, 32768) as pool:
        small, large = pool.servers
        small.hold()
        large.hold()
        assert small.usable and pool.capacity == 32768
        large.admit(1)
        small.admit(1)
        assert [server.usable for server in pool.servers] == [False, True]
        async with small.client:
            with pytest.raises(
                RolloutServerBroken, match=r"1,000 tokens at most .*other servers take 32,768"
            ):
                await small.measure()
            large.lost(RolloutServerUnreachable(large.url, "it is gone"))
            await small.measure()
            small.admit(1)
        assert small.ready and pool.capacity == 1000, "it is all that is left"


async def test_a_server_of_evaluations_is_not_compared_with_those_of_the_policy() -> None:
    async with measured(32768, 1000, reserved=1) as pool:
        assert [server.ready for server in pool.servers] == [True, True]


async def test_the_row_of_a_small_server_names_its_fault_and_calls_use_the_others(
    database_url: str,
    nats_server: EmbeddedNats,
    server_url: str,
    policies: Policies,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward, small = Proxy.forward, list[Proxy]()

    async def forwarded(proxy: Proxy, request: web.Request) -> web.Response:
        if request.path == "/server_info" and proxy in small:
            return web.json_response({"max_req_input_len": 60})
        return await forward(proxy, request)

    monkeypatch.setattr(Proxy, "forward", forwarded)
    urls = [server_url, server_url]
    async with open_rig(database_url, nats_server.url, urls, policies, tmp_path) as rig:
        small.append(rig.proxies[1])
        await rig.publish(0)
        query = "SELECT detail FROM rollout_servers WHERE state = 'failed' AND url = :url"

        async def fault() -> str:
            return "".join(row.detail for row in await rig.rows(query, url=small[0].url))

        await eventually(fault, lambda found: "prompts of 60 tokens at most" in found)
        assert rig.gateway.pool.capacity > 2000
        for _ in range(4):
            _, session = await rig.open(budget=SessionBudget(max_turns=4, max_context=0))
            assert session.context > 2000
            async with NativeLlm(rig.gateway.url, session.token) as llm:
                await llm.complete([{"role": "user", "content": "oak " * 100}], max_tokens=4)
        assert len(rig.proxies[0].sent) == 4 and not small[0].sent


async def test_a_server_that_is_found_to_be_too_small_during_its_sync_is_never_ready_in_its_row(
    database_url: str,
    nats_server: EmbeddedNats,
    server_url: str,
    policies: Policies,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward, write = Proxy.forward, ServerLease.write
    reported: dict[str, int] = {}
    written: list[tuple[str, ServerState]] = []

    async def forwarded(proxy: Proxy, request: web.Request) -> web.Response:
        if request.path == "/server_info":
            return web.json_response({"max_req_input_len": reported[proxy.url]})
        return await forward(proxy, request)

    async def noted(lease: ServerLease, state: ServerState, *values: Any) -> None:
        written.append((lease.url, state))
        await write(lease, state, *values)

    monkeypatch.setattr(Proxy, "forward", forwarded)
    monkeypatch.setattr(ServerLease, "write", noted)
    urls = [server_url, server_url]
    async with open_rig(database_url, nats_server.url, urls, policies, tmp_path) as rig:
        small, large = rig.proxies
        reported |= {small.url: 1000, large.url: 262138}
        canary = small.held["/generate"] = anyio.Event()
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[1].ready)
        await eventually(lambda: "canary" in small.seen)
        canary.set()
        await eventually(lambda: (small.url, ServerState.FAILED) in written)
        assert (small.url, ServerState.READY) not in written
        assert not rig.gateway.pool.servers[0].ready
