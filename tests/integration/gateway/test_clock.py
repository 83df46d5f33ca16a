"""The gateway's wall clock is set again, by an hour and more: sessions live and expire as if nothing had happened."""

import time
from typing import Any

import anyio
import pytest

from orchestrator.gateway_client import NativeLlm, OpenSession, SessionBudget, SessionOver
from orchestrator.settings.timeouts import Timeouts
from tests.integration.gateway.rig import PATIENCE_S, Rig
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_an_expired_session_leaves_the_gateways_memory_once_it_has_no_call_and_is_sealed_from_the_record(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "orchestrator.gateway.sessions.registry.timeouts", lambda: Timeouts(session_sweep_s=0.2)
    )
    await rig.stop_gateway()
    async with rig.another_gateway() as (gateway, admin):

        async def remembers(sessions: int) -> None:
            await eventually(
                lambda: (
                    gateway.metrics.registry.get_sample_value("penstock_gateway_open_sessions") == sessions
                ),
                within_s=PATIENCE_S,
                every_s=0.05,
            )

        async def opened(ttl_s: float) -> tuple[int, OpenSession]:
            rollout, budget = await rig.new_rollout(), SessionBudget(max_turns=20, max_context=2048)
            terms: dict[str, Any] = {"epoch": 1, "attempt": 1, "budget": budget, "ttl_s": ttl_s}
            return rollout, await admin.open_session(run=rig.run, rollout=rollout, **terms)

        # a call that waits for its server uses up its session's time
        await eventually(lambda: gateway.pool.servers[0].ready, within_s=PATIENCE_S, every_s=0.05)
        (_, living), (left, leaving), (_, busy) = await opened(1800.0), await opened(8.0), await opened(8.0)
        async with NativeLlm(gateway.url, leaving.token) as llm:
            await llm.complete([user("oak")], max_tokens=4)
        go_on = rig.proxy.held["/generate"] = anyio.Event()

        async def call() -> None:
            async with NativeLlm(gateway.url, busy.token) as llm:
                with pytest.raises(SessionOver, match="expired"):
                    await llm.complete([user("elm")], max_tokens=4)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await remembers(2)  # not the one with a running call, not the one that has time
            go_on.set()
        await remembers(1)
        async with NativeLlm(gateway.url, leaving.token) as llm:
            with pytest.raises(SessionOver, match="expired"):
                await llm.complete([user("oak")], max_tokens=4)
        seal = await admin.seal(rollout=left, attempt=1, epoch=1)
        assert (seal.steps, seal.last_idx) == (1, 0)
        async with NativeLlm(gateway.url, living.token) as llm:
            await llm.complete([user("ash")], max_tokens=4)


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
    _, session = await rig.open(ttl_s=1.0, budget=SessionBudget(max_turns=100_000, max_context=2048))
    monkeypatch.setattr(time, "time", lambda: real() - 7200)
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        with anyio.fail_after(PATIENCE_S), pytest.raises(SessionOver, match="expired"):
            while True:
                await llm.complete([user("oak")], max_tokens=1)
    await rig.stop_gateway()
    async with rig.another_gateway() as (gateway, _), NativeLlm(gateway.url, session.token) as llm:
        with pytest.raises(SessionOver, match="expired"):
            await llm.complete([user("oak")], max_tokens=1)
