"""The gateway's wall clock is set anew, by an hour and more: sessions live and expire as if nothing had happened."""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.gateway_client import Budget, NativeLlm, SessionOver
from tests.contract.rollout_server import running_server
from tests.integration.gateway_rig import PATIENCE_S, Policies, Rig, make_policies, open_rig

pytestmark = [pytest.mark.anyio, pytest.mark.services]


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return make_policies(tmp_path_factory.mktemp("policies"), 1)


@pytest.fixture(scope="module")
def server_url(policies: Policies) -> Iterator[str]:
    with running_server(policies.model) as server:
        yield server.url


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with open_rig(database_url, nats_server.url, server_url, policies, tmp_path) as rig:
        await rig.publish(0)
        yield rig


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("hours", [-2, 2])
async def test_a_session_outlives_a_shift_of_the_clock_and_a_restart_after_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real = time.time
    _, session = await rig.open(ttl_s=1800.0)
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        await llm.complete([user("oak")], max_tokens=4)
        monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
        await llm.complete([user("elm")], max_tokens=4)
    await rig.stop_gateway()
    async with rig.another_gateway() as (gateway, _), NativeLlm(gateway.url, session.token) as llm:
        await llm.complete([user("ash")], max_tokens=4)


async def test_a_session_expires_by_its_time_to_live_also_where_the_clock_was_set_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    _, session = await rig.open(ttl_s=1.0, budget=Budget(100_000, 2048))
    monkeypatch.setattr(time, "time", lambda: real() - 7200)
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        with anyio.fail_after(PATIENCE_S), pytest.raises(SessionOver, match="expired"):
            while True:
                await llm.complete([user("oak")], max_tokens=1)
    await rig.stop_gateway()
    async with rig.another_gateway() as (gateway, _), NativeLlm(gateway.url, session.token) as llm:
        with pytest.raises(SessionOver, match="expired"):
            await llm.complete([user("oak")], max_tokens=1)
