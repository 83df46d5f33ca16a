"""Rows of messages that are handled alone: counted once per try, and no other process counts a try that still runs."""

import secrets

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool.suspect_messages import begin_alone, end_alone
from tests.waiting import eventually

WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]


async def test_a_try_whose_process_vanished_counts_and_an_end_forgets(engine: AsyncEngine) -> None:
    digest = secrets.token_bytes(32)
    tries = [await begin_alone(engine, digest, "TASKS", process) for process in ("a", "b", "b", "c")]
    assert tries == [1, 2, 2, 3]  # "b" is alive: it started twice
    async with engine.begin() as connection:
        await end_alone(connection, digest)
    assert await begin_alone(engine, digest, "TASKS") == 1


@pytest.mark.parametrize(("commits", "tries"), [(True, 1), (False, 2)])
async def test_another_process_waits_for_the_transaction_that_handles_the_message(
    engine: AsyncEngine, commits: bool, tries: int
) -> None:
    digest = secrets.token_bytes(32)
    counted: list[int] = []

    async def count() -> None:
        counted.append(await begin_alone(engine, digest, "TASKS", str(len(counted))))

    async def waits() -> bool:
        async with engine.connect() as other:
            return bool(await other.scalar(text(WAITING)))

    await count()
    async with anyio.create_task_group() as group, engine.connect() as connection:
        handling = await connection.begin()
        await end_alone(connection, digest)
        group.start_soon(count)
        await eventually(waits)
        assert counted == [1]
        await (handling.commit() if commits else handling.rollback())
    assert counted == [1, tries]
