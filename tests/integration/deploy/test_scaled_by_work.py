"""KEDA's count, read from the data pool itself: runners that are busy with all the work are as many as before."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.states import RolloutState
from orchestrator.deploy.cluster.placement import kinds
from orchestrator.deploy.cluster.reading import read
from orchestrator.deploy.cluster.render.scaling import counted
from orchestrator.pool import leases
from orchestrator.pool.engine import Role, open_engine
from tests import builders
from tests.integration.pool.rig import context_of, report, rollouts_of, small
from tests.integration.pool.rig import ended as end_of

pytestmark = [pytest.mark.anyio, pytest.mark.services]

TOPOLOGY = {
    "name": "scaled",
    "images": {"penstock": "penstock:1"},
    "shared": {"path": "/s", "model": "m"},
    "config": {"queue": {"group_size": 4, "batch_groups": 2, "capacity": 40}},
    "runners": [{"name": "short", "max_replicas": 2}, {"name": "long", "max_replicas": 2}],
}


async def test_waiting_rollouts_count_for_every_pool_and_held_ones_for_the_pool_that_holds_them(
    engine: AsyncEngine, database_url: str
) -> None:
    found = kinds(read(TOPOLOGY))
    of = {pool: counted(read(TOPOLOGY), found[ProcessRole.RUNNER, pool]) for pool in ("short", "long")}
    of["verifier"] = counted(read(TOPOLOGY), found[ProcessRole.VERIFIER, "default"])

    async def counts() -> tuple[int, int, int]:
        async with (
            open_engine(database_url, Role.RUNNER, name="keda") as reader,
            reader.connect() as connection,
        ):
            short, long, verifier = [
                int(await connection.scalar(text(of[name].replace(":", "\\:"))) or 0) for name in of
            ]
        return short, long, verifier

    run = await builders.make_run(engine, small("scaled", group_size=4))
    await builders.make_run(engine, small("other"))
    assert await counts() == (0, 0, 0)
    [group] = await builders.accepted(engine, run, ["task"], size=4)
    await builders.dispatch(engine, run)
    assert await counts() == (4, 4, 0)
    held = []
    async with engine.begin() as connection:
        for number, rollout in enumerate(await rollouts_of(connection, group)):
            pool = "short" if number < 3 else "long"
            owner = f"scaled-runner-{pool}-7d9f-{number}:/penstock:runner-{pool}"
            held.append(await leases.lease(connection, run.run_id, rollout, 1, owner, 60.0))
    assert await counts() == (3, 1, 0)  # none waits, and both are as busy as they were
    context = context_of(engine, run)
    assert held[0] is not None
    assert await report(context, end_of(run.name, held[0], []))
    assert await counts() == (2, 1, 1)
    async with engine.begin() as connection:
        await leases.lease(
            connection,
            run.run_id,
            held[0].rollout_id,
            1,
            "v-1:/penstock:verifier",
            60.0,
            before=RolloutState.FINISHED,
        )
    assert await counts() == (2, 1, 1)
