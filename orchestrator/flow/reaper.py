"""The reaper: leases that ran out. After the database was away, every lease first gets one full TTL.

| produces | waits for | unblocked by |
|---|---|---|
| new attempts, new verifications, lost rollouts | expired leases (the database's clock) | time |
"""

from datetime import timedelta

import anyio
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import RolloutState
from orchestrator.flow.complete import complete_reported, run_again
from orchestrator.flow.context import Flow
from orchestrator.flow.ingest import verify_again
from orchestrator.pool import history, leases
from orchestrator.pool.tables import rollouts
from orchestrator.pool.transact import transact


async def reaper(flow: Flow) -> None:
    """Reap until cancelled."""
    ttl_s = flow.config.rollout.lease_ttl_s
    period_s = min(1.0, ttl_s / 10)

    async def grace(connection: AsyncConnection) -> None:
        # Holders could not renew while Postgres (or we) were away.
        await connection.execute(
            update(rollouts)
            .where(
                rollouts.c.run_id == flow.run_id,
                rollouts.c.lease_until < func.clock_timestamp() + timedelta(seconds=ttl_s),
            )
            .values(lease_until=func.clock_timestamp() + timedelta(seconds=ttl_s))
        )

    async def once(connection: AsyncConnection) -> None:
        for lease in await leases.expired(connection, flow.run_id):
            await history.count(connection, flow.run_id, "leases_expired")
            match lease.state:
                case RolloutState.RUNNING:
                    await run_again(
                        connection,
                        flow,
                        lease.rollout_id,
                        lease.attempt,
                        lease.epoch,
                        lease.state,
                        "the runner's lease ran out",
                    )
                case RolloutState.REPORTED:
                    await complete_reported(connection, flow, [lease.rollout_id])
                    await run_again(
                        connection,
                        flow,
                        lease.rollout_id,
                        lease.attempt,
                        lease.epoch,
                        lease.state,
                        "announced steps never arrived",
                    )
                case RolloutState.VERIFYING:
                    await verify_again(
                        connection,
                        flow,
                        lease.rollout_id,
                        lease.attempt,
                        lease.epoch,
                        "the verifier runner's lease ran out",
                    )

    await transact(flow.engine, grace)
    last = anyio.current_time()
    while True:
        await anyio.sleep(period_s)
        if (
            anyio.current_time() - last > ttl_s / 2
        ):  # a transaction (or this loop) hung that long: so did the holders
            await transact(flow.engine, grace)
        await transact(flow.engine, once)
        last = anyio.current_time()
