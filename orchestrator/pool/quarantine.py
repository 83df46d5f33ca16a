"""Quarantine: a closed batch that cannot be trained is voided, never saved; its groups end as filtered(quarantined)."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BatchState, Entity, FilterReason
from orchestrator.pool import transitions as history
from orchestrator.pool.batches import drop
from orchestrator.pool.rewind import REWIND
from orchestrator.pool.tables import batches, transitions


async def quarantine(connection: AsyncConnection, run_id: int, batch_id: int, why: str) -> bool:
    """Void a closed batch that cannot be trained, and store `why`: its groups become filtered(quarantined). False if it is no longer closed."""
    await history.lock_run(connection, run_id)
    state = await connection.scalar(select(batches.c.state).where(batches.c.batch_id == batch_id))
    if state != BatchState.CLOSED:
        return False
    await drop(connection, batch_id, FilterReason.QUARANTINED, BatchState.CLOSED, why)
    return True


async def quarantined_in_a_row(connection: AsyncConnection, run_id: int) -> int:
    """How many batches were quarantined since the last commit or rewind. A rewind removes the weights with which they failed."""
    of_batches = (transitions.c.run_id == run_id) & (transitions.c.kind == Entity.BATCH)
    last_good = (
        select(func.coalesce(func.max(transitions.c.transition_id), 0))
        .where(
            of_batches,
            (transitions.c.to_state == BatchState.COMMITTED) | transitions.c.reason.startswith(REWIND),
        )
        .scalar_subquery()
    )
    count = await connection.scalar(
        select(func.count()).where(
            of_batches,
            transitions.c.to_state == BatchState.VOIDED,
            transitions.c.reason == FilterReason.QUARANTINED,
            transitions.c.transition_id > last_good,
        )
    )
    return int(count or 0)
