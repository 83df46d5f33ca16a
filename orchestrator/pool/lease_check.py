"""Why a message's claim about its lease is wrong: one sentence, for the log."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.pool.tables import rollouts


def not_current(attempt: int, epoch: int, owner: Any) -> str | None:
    """`owner`: attempt and lease_epoch of the rollout's row, None if the run has no such rollout. Returns None if the claim is right."""
    if owner is None:
        return "this run has no such rollout"
    if attempt != owner.attempt:
        return f"attempt {attempt} is not current: the rollout is at attempt {owner.attempt}"
    if epoch < owner.lease_epoch:
        return f"lease epoch {epoch} is over: the rollout is at epoch {owner.lease_epoch}"
    if epoch > owner.lease_epoch:
        return f"lease epoch {epoch} was never given: the rollout is at epoch {owner.lease_epoch}"
    return None


async def why_stale(connection: AsyncConnection, run_id: int, rollout: int, attempt: int, epoch: int) -> str:
    """Why a result or a verdict changed nothing."""
    table = rollouts.c
    query = select(table.attempt, table.lease_epoch, table.state)
    owner = (
        await connection.execute(query.where(table.run_id == run_id, table.rollout_id == rollout))
    ).first()
    claim = not_current(attempt, epoch, owner)
    return claim or f"the rollout is {owner.state} and waits for none"  # type: ignore[union-attr]
