"""Quarantine: a closed batch that cannot be trained is voided, never saved; its groups end as filtered(quarantined).

A failure whose cause may be the batch or not is a row of its history (closed → closed), so it counts across restarts.
"""

from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BatchState, Entity, FilterReason
from orchestrator.pool import transitions as history
from orchestrator.pool.batches import drop
from orchestrator.pool.rewind import REWIND
from orchestrator.pool.tables import batches, transitions

MAX_FAILURES: Final = 2
"""Failures of a batch before it is quarantined: no process starts again more often because of one batch."""


async def failures(connection: AsyncConnection, batch_id: int) -> int:
    """How often training of a batch failed for a reason that is not plainly its content."""
    count = await connection.scalar(
        select(func.count()).where(
            transitions.c.kind == Entity.BATCH,
            transitions.c.entity_id == batch_id,
            transitions.c.from_state == BatchState.CLOSED,
            transitions.c.to_state == BatchState.CLOSED,
        )
    )
    return int(count or 0)


async def record_failure(
    connection: AsyncConnection, run_id: int, batch_id: int, why: str, *, earlier: int
) -> int:
    """Record that training of a closed batch failed, and return how often that has happened. A call that is repeated because its commit was not
    confirmed records nothing: then there are more than `earlier` failures. Neither does a call for a batch that is no longer closed."""
    await history.lock_run(connection, run_id)
    if await failures(connection, batch_id) <= earlier:
        await history.move_batch(connection, batch_id, BatchState.CLOSED, BatchState.CLOSED, reason=why)
    return await failures(connection, batch_id)


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
