"""Calls of a session with a seed: each is a sample of its own, and a session of the same seed gets the same samples again."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway_client import NativeLlm, OpenSession
from tests.integration.gateway.rig import Policies, Rig, open_rig
from tests.integration.gateway.test_retries import body, post
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with open_rig(database_url, nats_server.url, server_url, policies, tmp_path) as rig:
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[0].ready)
        yield rig


async def opened(rig: Rig) -> OpenSession:
    return (await rig.open(sampling={"temperature": 1.0, "seed": 5}))[1]


def seeds(rig: Rig) -> list[int]:
    """The seeds that the rollout server got since the last call."""
    found = [each["sampling_params"]["sampling_seed"] for each in rig.proxy.requests]
    del rig.proxy.requests[:]
    return found


async def replies(llm: NativeLlm, agents: Sequence[str]) -> list[str]:
    """One question of several calls at once."""
    found: dict[int, str] = {}

    async def ask(number: int, agent: str) -> None:
        reply = await llm.complete([{"role": "user", "content": "oak"}], agent=agent)
        found[number] = reply.content

    async with anyio.create_task_group() as tasks:
        for number, agent in enumerate(agents):
            tasks.start_soon(ask, number, agent)
    return [found[number] for number in range(len(agents))]


async def test_equal_questions_at_once_are_different_samples_and_the_same_ones_in_any_order(rig: Rig) -> None:
    agents = ("main", "main", "main/a", "main/b")
    async with NativeLlm(rig.gateway.url, (await opened(rig)).token) as llm:
        first = await replies(llm, agents)
    assert len(set(first)) == len(set(seeds(rig))) == 4
    async with NativeLlm(rig.gateway.url, (await opened(rig)).token) as llm:
        one_by_one = {n: (await replies(llm, [agents[n]]))[0] for n in (3, 0, 1, 2)}
    assert [one_by_one[n] for n in range(4)] == first


async def test_programs_get_samples_that_no_random_metadata_changes_and_other_ones_at_once(rig: Rig) -> None:
    def sampled(sample: str) -> dict[str, Any]:
        return body("oak", False, metadata={"sample": sample})

    async def sent(session: OpenSession, *samples: str) -> list[int]:
        async with anyio.create_task_group() as tasks:
            for sample in samples:
                tasks.start_soon(partial(post, rig, session, sampled(sample)))
        return seeds(rig)

    session = await opened(rig)
    (alone,) = await sent(session, "a")
    assert await sent(await opened(rig), "b") == [alone]
    again = [*(await sent(session, "a")), *(await sent(session, "a")), *(await sent(session, "b", "c"))]
    assert len({alone, *again}) == 5
    assert alone in (at_once := await sent(await opened(rig), "d", "e")) and len(set(at_once)) == 2
