"""Nobody takes the gateway's steps: with a full spool completions wait, in sessions that stay, and go on when somebody does."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.gateway_client import Budget, NativeLlm
from tests.integration.gateway_rig import PATIENCE_S, Policies, Rig, open_rig

pytestmark = [pytest.mark.anyio, pytest.mark.services]

SPOOL_MB = 0.02
SESSIONS = 3
LARGEST = 8192  # bytes of a step; of each session one may be under way when the spool is full


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with open_rig(
        database_url, nats_server.url, server_url, policies, tmp_path,
        sections={"gateway": {"spool_mb": SPOOL_MB}},
    ) as rig:  # fmt: skip
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
        opened = [await rig.open(budget=Budget(10_000, 1_000_000)) for _ in range(SESSIONS)]
        for rollout, session in opened:  # together: one alone may fill the spool
            steps[rollout] = 0
            tasks.start_soon(converse, rollout, session.token)
        with anyio.fail_after(PATIENCE_S):
            # Full, every completion that was begun is answered, and each session has asked for another one.
            while (
                spooled(rig) < SPOOL_MB * 2**20
                or sum(steps.values()) < len(rig.proxy.asked)
                or open_calls(rig) < SESSIONS
            ):
                await anyio.sleep(0.005)
        answered, asked = dict(steps), len(rig.proxy.asked)
        full = spooled(rig)
        assert SPOOL_MB * 2**20 <= full <= SPOOL_MB * 2**20 + SESSIONS * LARGEST
        assert min(answered.values()) > 0
        await anyio.sleep(1.0)  # what must not happen has had its time: a completion takes milliseconds
        assert (steps, len(rig.proxy.asked), spooled(rig)) == (answered, asked, full)
        rig.start_ingest()
        with anyio.fail_after(PATIENCE_S):
            while any(steps[rollout] < answered[rollout] + 2 for rollout in steps):
                await anyio.sleep(0.005)
        enough.set()
    for rollout, count in steps.items():
        seal = await rig.seal(rollout)
        stored: list[Any] = await rig.stored(rollout, seal.steps)
        assert [step.idx for step in stored] == list(range(count)) and seal.marks == ()
