"""One database holds several runs: each trains its own groups, and one query compares them."""

import pytest
from sqlalchemy import select, text

from orchestrator.pool.tables import policy_versions
from tests.builders import ready_groups
from tests.integration.trainer.rig import Pool, model, pool, scored_by
from trainer.loop import train_batches

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def test_two_runs_of_one_database_train_their_own_batches(pool: Pool) -> None:
    first, second = await pool.run(), await pool.run(run={"name": "second"})
    author = scored_by(pool.model)
    for run in (first, second):
        await ready_groups(pool.engine, run, ["a", "b"], author)
    await train_batches(await pool.trainer(second), 2)
    query = select(policy_versions.c.run_id, policy_versions.c.version).order_by(policy_versions.c.version)
    assert [tuple(row) for row in await pool.rows(query)] == [(second.run_id, 0), (second.run_id, 1)]
    await train_batches(await pool.trainer(first), 2)
    assert (await pool.newest(first)).version == (await pool.newest(second)).version == 1
    compared = await pool.rows(
        text("SELECT r.name, count(*) FROM train_steps s JOIN runs r USING (run_id) GROUP BY 1 ORDER BY 1")
    )
    assert [tuple(row) for row in compared] == [("second", 2), ("test", 2)]
