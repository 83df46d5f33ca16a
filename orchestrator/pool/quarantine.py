"""Quarantine: a closed batch that cannot be trained is voided, never saved; its groups end as filtered(quarantined)."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BatchState, FilterReason
from orchestrator.pool import history
from orchestrator.pool.batches import drop
from orchestrator.pool.tables import batch_items, batches, groups


async def quarantine(connection: AsyncConnection, run_id: int, batch_id: int) -> bool:
    """Void a closed batch that cannot be trained: its groups become filtered(quarantined). False when it is no longer closed."""
    await history.lock_run(connection, run_id)
    state = await connection.scalar(select(batches.c.state).where(batches.c.batch_id == batch_id))
    if state != BatchState.CLOSED:
        return False
    await drop(connection, batch_id, FilterReason.QUARANTINED, BatchState.CLOSED)
    return True


async def quarantined_in_a_row(connection: AsyncConnection, run_id: int) -> int:
    """How many batches were quarantined since the last commit."""
    last_commit = (
        select(func.coalesce(func.max(batches.c.batch_id), 0))
        .where(batches.c.run_id == run_id, batches.c.state == BatchState.COMMITTED)
        .scalar_subquery()
    )
    count = await connection.scalar(
        select(func.count(func.distinct(batches.c.batch_id)))
        .select_from(
            batches.join(batch_items, batch_items.c.batch_id == batches.c.batch_id).join(
                groups, groups.c.group_id == batch_items.c.group_id
            )
        )
        .where(
            batches.c.run_id == run_id,
            batches.c.state == BatchState.VOIDED,
            batches.c.batch_id > last_commit,
            groups.c.reason == FilterReason.QUARANTINED,
        )
    )
    return int(count or 0)
