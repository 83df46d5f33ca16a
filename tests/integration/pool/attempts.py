"""The course of the tests' rollouts: started, expired, failed, succeeded."""

from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.states import FailureClass, RolloutState
from orchestrator.pool import leases
from orchestrator.pool.leases import Lease
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.tables import (
    rollouts,
)
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.reaper import reap
from tests import builders
from tests.integration.pool.rig import (
    OWNER,
    ended,
    flow_of,
    record,
    report,
    rollout_row,
    running,
    small,
    verify,
)

AUTHOR = builders.Author()


async def started(
    engine: AsyncEngine, members: int = 2, **queue: object
) -> tuple[StoredRun, OrchestratorContext, list[Lease]]:
    run = await builders.make_run(engine, small(**queue))
    return run, flow_of(engine, run), await running(engine, run, members)


async def expire(engine: AsyncEngine, rollout_id: int) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            update(rollouts)
            .where(rollouts.c.rollout_id == rollout_id)
            .values(lease_until=text("clock_timestamp() - interval '1 second'"))
        )


async def reaped(flow: OrchestratorContext) -> None:
    async with flow.engine.begin() as connection:
        await reap(connection, flow)


async def requeue(flow: OrchestratorContext, rollout_id: int) -> Lease:
    """Lease a rollout that waits for its next attempt."""
    row = await rollout_row(flow.engine, rollout_id)
    assert row.state == RolloutState.QUEUED
    async with flow.engine.begin() as connection:
        lease = await leases.lease(connection, flow.run_id, rollout_id, row.lease_epoch, OWNER, 60.0)
    assert lease is not None
    return lease


async def fail(
    flow: OrchestratorContext, lease: Lease, failure: FailureClass = FailureClass.INFRA_FAILURE
) -> None:
    result = ended(flow.run, lease, [], digest="", failure_class=failure, reason="the sandbox is gone")
    assert await report(flow, result)


async def succeed(flow: OrchestratorContext, run: StoredRun, lease: Lease, reward: float) -> None:
    steps = AUTHOR.trajectory(lease, run.name, AUTHOR.ids(5, 5))
    await record(flow.engine, run, steps)
    assert await report(flow, ended(run.name, lease, steps))
    await verify(flow, lease.rollout_id, reward)
