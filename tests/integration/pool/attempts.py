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
    context_of,
    ended,
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
    return run, context_of(engine, run), await running(engine, run, members)


async def expire(engine: AsyncEngine, rollout_id: int) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            update(rollouts)
            .where(rollouts.c.rollout_id == rollout_id)
            .values(lease_until=text("clock_timestamp() - interval '1 second'"))
        )


async def reaped(context: OrchestratorContext) -> None:
    async with context.engine.begin() as connection:
        await reap(connection, context)


async def requeue(context: OrchestratorContext, rollout_id: int) -> Lease:
    """Lease a rollout that waits for its next attempt."""
    row = await rollout_row(context.engine, rollout_id)
    assert row.state == RolloutState.QUEUED
    async with context.engine.begin() as connection:
        lease = await leases.lease(connection, context.run_id, rollout_id, row.lease_epoch, OWNER, 60.0)
    assert lease is not None
    return lease


async def fail(
    context: OrchestratorContext, lease: Lease, failure: FailureClass = FailureClass.INFRA_FAILURE
) -> None:
    result = ended(context.run, lease, [], digest="", failure_class=failure, reason="the sandbox is gone")
    assert await report(context, result)


async def succeed(context: OrchestratorContext, run: StoredRun, lease: Lease, reward: float) -> None:
    steps = AUTHOR.trajectory(lease, run.name, AUTHOR.ids(5, 5))
    await record(context.engine, run, steps)
    assert await report(context, ended(run.name, lease, steps))
    await verify(context, lease.rollout_id, reward)
