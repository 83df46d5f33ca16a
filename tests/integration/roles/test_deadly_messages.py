"""A message that ends its process without an error costs three restarts, and a process that is stopped costs no message."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery
from orchestrator.roles.consume import Later, Outcome, consume
from orchestrator.roles.returned import REASON
from orchestrator.settings.timeouts import Timeouts, use
from tests.integration.roles.deadly_consumer import ACK_WAIT_S
from tests.integration.roles.rig import Stage, playing
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]


@asynccontextmanager
async def consuming(stage: Stage, database_url: str) -> AsyncIterator[anyio.abc.Process]:
    """The consumer of `deadly_consumer` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.integration.roles.deadly_consumer",
        database_url,
        stage.url,
        stage.run.name,
    ]
    async with await anyio.open_process(command, stdout=subprocess.DEVNULL, stderr=None) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


async def test_a_message_that_ends_its_process_is_refused_after_three_restarts_and_the_others_pass(
    stage: Stage, database_url: str
) -> None:
    await stage.submit("a", "poison", "b")
    for _ in range(3):  # twice with the others, and alone
        async with consuming(stage, database_url) as process:
            with anyio.fail_after(60):
                assert await process.wait() == -signal.SIGKILL
        assert await stage.count("dead_letters") == 0
    async with consuming(stage, database_url) as process:
        await stage.reaches(1, "dead_letters", run_id=stage.run.run_id)
        await stage.submit("c")
        await stage.emptied("TASKS")
        assert process.returncode is None
    assert await stage.reasons() == [REASON]
    assert await stage.count("suspect_messages") == 0


async def test_a_process_that_stops_while_it_handles_a_returned_message_leaves_it_unsuspected(
    stage: Stage,
) -> None:
    counts: list[int] = []

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, Outcome]:
        counts.extend(delivery.deliveries for delivery in deliveries)
        if len(counts) < 4:
            await anyio.sleep_forever()
        return {}

    await stage.submit("innocent")
    for n in range(1, 5):
        with use(Timeouts(bus_ack_wait_s=ACK_WAIT_S)):
            async with playing(
                [partial(consume, stage.context, subjects.consume_tasks(), handle, at="tests")]
            ):
                await eventually(lambda n=n: len(counts) >= n)  # type: ignore[misc]
                if n < 4:
                    await stage.reaches(int(n > 2), "suspect_messages")
                else:
                    await stage.emptied("TASKS")
        assert await stage.count("suspect_messages") == 0
    assert await stage.count("dead_letters") == 0 and sorted(counts) == counts and counts[-1] > 2


async def test_a_message_that_this_process_sent_back_is_not_suspected(stage: Stage) -> None:
    suspected: list[int] = []

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, Outcome]:
        suspected.append(await stage.count("suspect_messages"))
        if len(suspected) < 4:
            return {i: Later(0.1) for i, _ in enumerate(deliveries)}
        return {}

    await stage.submit("a")
    async with playing([partial(consume, stage.context, subjects.consume_tasks(), handle, at="tests")]):
        await stage.emptied("TASKS")
    assert suspected == [0, 0, 0, 0] and await stage.count("dead_letters") == 0
