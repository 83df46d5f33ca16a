"""Quarantine: a closed batch that cannot be trained is voided, never saved; its groups end as filtered(quarantined).

A failure whose cause may be the batch or not is a row of its history (closed → closed), so it counts across restarts. So does a person's
permission to continue, which is a row of `actions`: every later start of a trainer reads it.
"""

from typing import Final

from sqlalchemy import BigInteger, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import BatchState, Entity, FilterReason
from orchestrator.pool import transitions as history
from orchestrator.pool.batches import drop
from orchestrator.pool.rewind import REWIND
from orchestrator.pool.steer import Action, record
from orchestrator.pool.tables import actions, batches, transitions

MAX_FAILURES: Final = 2
"""Failures of a batch before it is quarantined: no process starts again more often because of one batch."""
TRAINER: Final = "trainer"
"""The target of the action that lets a halted trainer continue."""


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
    """How many batches were quarantined since the last commit, rewind or permission to continue. A rewind removes the weights with which they
    failed."""
    of_batches = (transitions.c.run_id == run_id) & (transitions.c.kind == Entity.BATCH)
    last_good = (
        select(func.coalesce(func.max(transitions.c.transition_id), 0))
        .where(
            of_batches,
            (transitions.c.to_state == BatchState.COMMITTED) | transitions.c.reason.startswith(REWIND),
        )
        .scalar_subquery()
    )
    permitted = (
        select(func.coalesce(func.max(actions.c.after["transition"].astext.cast(BigInteger)), 0))
        .where(actions.c.run_id == run_id, actions.c.what == Action.RETRY, actions.c.target == TRAINER)
        .scalar_subquery()
    )
    count = await connection.scalar(
        select(func.count()).where(
            of_batches,
            transitions.c.to_state == BatchState.VOIDED,
            transitions.c.reason == FilterReason.QUARANTINED,
            transitions.c.transition_id > func.greatest(last_good, permitted),
        )
    )
    return int(count or 0)


async def permit(connection: AsyncConnection, run_id: int, who: str, reason: str) -> int:
    """Let the trainer continue at its next start, by any process: the batches that were quarantined in a row no longer count. Returns how many
    they are. Raises ConfigurationError, one sentence, if there is none."""
    await history.lock_run(connection, run_id)
    bad = await quarantined_in_a_row(connection, run_id)
    if not bad:
        raise ConfigurationError(
            "no batch was quarantined since the last commit, rewind or permission to continue: quarantines do not halt the trainer"
        )
    newest = await connection.scalar(
        select(func.max(transitions.c.transition_id)).where(
            transitions.c.run_id == run_id, transitions.c.kind == Entity.BATCH
        )
    )
    await record(
        connection,
        run_id,
        who=who,
        what=Action.RETRY,
        target=TRAINER,
        before={"quarantined": bad},
        after={"transition": newest},
        reason=reason,
    )
    return bad
