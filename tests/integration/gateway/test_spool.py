"""Nothing takes the gateway's steps: with a full spool completions wait, in sessions that stay, and continue when a consumer does."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway_client import NativeLlm, SessionBudget
from tests.integration.gateway.rig import PATIENCE_S, Policies, Rig, open_rig
from tests.waiting import eventually, stays_true_for

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

SPOOL_MB = 0.02
SESSIONS = 3
LARGEST = 8192  # bytes of a step; of each session one may be under way when the spool is full


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with open_rig(
        database_url,
        nats_server.url,
        server_url,
        policies,
        tmp_path,
        sections={"gateway": {"spool_mb": SPOOL_MB}},
    ) as rig:
        await rig.publish(0)
        yield rig


def spooled(rig: Rig) -> float:
    return rig.gateway.metrics.registry.get_sample_value("penstock_gateway_spool_bytes") or 0.0


def open_calls(rig: Rig) -> float:
    return rig.gateway.metrics.registry.get_sample_value("penstock_gateway_open_calls") or 0.0


async def test_a_full_spool_holds_completions_until_the_data_pool_takes_steps_and_none_is_lost(
    rig: Rig,
) -> None:
    steps: dict[int, int] = {}  # by rollout, answered
    enough = anyio.Event()

    async def converse(rollout: int, token: str) -> None:
        async with NativeLlm(rig.gateway.url, token) as llm:
            while not enough.is_set():
                reply = await llm.complete([{"role": "user", "content": f"Say {steps[rollout]}."}])
                assert reply.step == steps[rollout], "one after the other, none twice"
                steps[rollout] += 1

    async with anyio.create_task_group() as tasks:
        opened = [
            await rig.open(budget=SessionBudget(max_turns=10_000, max_context=1_000_000))
            for _ in range(SESSIONS)
        ]
        for rollout, session in opened:  # together: one alone may fill the spool
            steps[rollout] = 0
            tasks.start_soon(converse, rollout, session.token)
        # Full: every started completion is answered, and each session has requested another one.
        await eventually(
            lambda: (
                spooled(rig) >= SPOOL_MB * 2**20
                and sum(steps.values()) >= len(rig.proxy.requests)
                and open_calls(rig) >= SESSIONS
            ),
            within_s=PATIENCE_S,
        )
        answered, requested = dict(steps), len(rig.proxy.requests)
        full = spooled(rig)
        assert SPOOL_MB * 2**20 <= full <= SPOOL_MB * 2**20 + SESSIONS * LARGEST
        assert min(answered.values()) > 0
        await stays_true_for(  # a completion takes milliseconds
            1.0, lambda: (steps, len(rig.proxy.requests), spooled(rig)) == (answered, requested, full)
        )
        rig.start_ingest()
        await eventually(
            lambda: not any(steps[rollout] < answered[rollout] + 2 for rollout in steps), within_s=PATIENCE_S
        )
        enough.set()
    for rollout, count in steps.items():
        seal = await rig.seal(rollout)
        stored: list[Any] = await rig.stored(rollout, seal.steps)
        assert [step.idx for step in stored] == list(range(count)) and seal.marks == ()
