"""The cost of a claim and of a dispatch, which hold the queue's lock, while many groups wait."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.states import Purpose
from orchestrator.pool import batches, dispatch
from orchestrator.pool.runs import StoredRun
from orchestrator.scheduling.queue_policies import Windowed
from tests import builders
from tests.explained import most_rows_read
from tests.integration.pool.rig import small

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]

MANY = 3_000
COPY = """INSERT INTO groups (run_id, submission, task_id, domain, purpose, scaffold, size, state)
    SELECT run_id, submission || n, task_id, domain, purpose, scaffold, size, state FROM groups, generate_series(1, :n) AS n
     WHERE submission IN ('coding', 'general')"""


async def waiting(engine: AsyncEngine, many: int) -> StoredRun:
    """A run with `many` training groups of each of two domains that wait, one that is dispatched, and an evaluation of a third domain."""
    run = await builders.make_run(engine, small())
    await builders.accepted(engine, run, ["dispatched"], size=2)
    await builders.dispatch(engine, run)
    for domain in ("coding", "general"):
        await builders.accepted(engine, run, [domain], size=2, domain=domain)
    await builders.accepted(engine, run, ["held"], domain="agent", purpose=Purpose.EVAL, pinned_version=0)
    async with engine.begin() as connection:
        await connection.execute(text(COPY), {"n": many - 1})
    async with engine.connect() as connection:
        await (await connection.execution_options(isolation_level="AUTOCOMMIT")).execute(
            text("ANALYZE groups")
        )
    return run


async def lock(connection: AsyncConnection, run: StoredRun) -> Any:
    return await dispatch.lock_queue(connection, run.run_id)


async def take(connection: AsyncConnection, run: StoredRun) -> Any:
    return await batches.take(connection, run.run_id, Windowed(2), 2, 1)


@pytest.mark.parametrize("work", [lock, take])
async def test_a_dispatch_and_a_claim_read_a_bounded_number_of_the_groups_that_wait(
    engine: AsyncEngine,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[AsyncConnection, StoredRun], Awaitable[Any]],
) -> None:
    monkeypatch.setattr(dispatch, "WAITING_WITHIN", 50)
    run = await waiting(engine, MANY)
    assert await most_rows_read(engine, "groups", lambda connection: work(connection, run)) <= 100


async def test_the_groups_that_wait_are_counted_up_to_a_bound_under_the_lock_and_whole_for_readers(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "WAITING_WITHIN", 3)
    run = await waiting(engine, 5)
    async with engine.begin() as connection:
        locked = await dispatch.lock_queue(connection, run.run_id)
        shown = await dispatch.view_queue(connection, run.run_id)
    assert (locked.accepted, shown.accepted) == ({"coding": 3, "general": 3}, {"coding": 5, "general": 5})
