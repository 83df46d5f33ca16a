"""The window that the pages, the gauges and the view show is that of the run's queue policy."""

import secrets

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool import batches
from orchestrator.queries.queue import queue
from orchestrator.queries.run_gauges import run_gauges
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.queue_policies import queue_policy
from tests import builders
from tests.integration.pool.rig import small

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


@pytest.mark.parametrize(("policy", "window"), [("fifo", 1), ("windowed", 3), ("greedy", 6)])
async def test_what_is_inside_the_window_is_what_the_policy_takes(
    engine: AsyncEngine, policy: str, window: int
) -> None:
    config = small(f"r{secrets.token_hex(4)}", policy=policy, window_fraction=0.5)
    run = await builders.make_run(engine, config)
    made = await builders.accepted(engine, run, list("abcdef"))
    await builders.dispatch(engine, run)
    for group in (made[1], made[4]):
        await builders.finish(engine, run, group, builders.Author())
    async with engine.begin() as connection:
        shown = await queue(connection, run, config, QueueSettings.of(config))
        gauges = await run_gauges(connection, run.run_id, config)
        view = "SELECT seq FROM window_state WHERE run_id = :r AND inside AND state = 'ready' ORDER BY seq"
        inside = list(await connection.scalars(text(view), {"r": run.run_id}))
        assert shown.window == gauges.window == window
        ready = [one.seq for one in shown.positions if one.state == "ready"]
        assert shown.head == 0 and ready == [1, 4]
        assert inside == [seq for seq in ready if seq < window]
        chosen = queue_policy(policy, config.queue.capacity, config.queue.window_fraction)
        batch = await batches.take(connection, run.run_id, chosen, 2, 1)
        assert batch is not None
        taken = text("SELECT seq FROM groups WHERE run_id = :r AND state = 'taken' ORDER BY seq")
        assert list(await connection.scalars(taken, {"r": run.run_id})) == inside


async def test_a_greedy_run_has_each_open_position_inside_however_many_have_passed_its_head(
    engine: AsyncEngine,
) -> None:
    config = small(f"r{secrets.token_hex(4)}", policy="greedy", max_staleness=9)
    run = await builders.make_run(engine, config)
    await builders.accepted(engine, run, ["a"])
    await builders.dispatch(engine, run)
    for name in "bcdefghi":
        await builders.ready_groups(engine, run, [name], builders.Author())
    async with engine.begin() as connection:
        shown = await queue(connection, run, config, QueueSettings.of(config))
    assert (shown.head, shown.next_seq, shown.window) == (0, 9, 9)
