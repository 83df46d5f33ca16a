"""A stored batch for later inspection: the inputs of its training and the metrics of its train steps. Reads only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BatchState
from orchestrator.pool.batches import LiveBatch
from orchestrator.pool.policy_versions import PolicyVersion, newest_version
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.tables import batches, policy_versions, train_steps


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A closed or committed batch; `trained_from` is the version whose weights it was (or will be) trained from."""

    batch: LiveBatch
    trained_from: PolicyVersion
    metrics: Sequence[Mapping[str, Any]]  # of its train steps, in order; empty before the commit


async def stored_batch(connection: AsyncConnection, run_id: int, batch_no: int) -> StoredBatch:
    """The batch of that number that no rewind and no quarantine undid. ValueError states why there is none."""
    rows = (
        await connection.execute(
            select(batches).where(batches.c.run_id == run_id).order_by(batches.c.batch_no, batches.c.batch_id)
        )
    ).all()
    row = _wanted(rows, batch_no)
    newest = await newest_version(connection, run_id)
    assert newest is not None, "a batch is claimed by a trainer, and every trainer has a version"
    metrics = await connection.scalars(
        select(train_steps.c.metrics)
        .where(train_steps.c.batch_id == row.batch_id)
        .order_by(train_steps.c.part)
    )
    parent = newest if row.version is None else await _parent(connection, run_id, row.version)
    return StoredBatch(from_wide_row(LiveBatch, row, taken=row.size), parent, metrics.all())


def _wanted(rows: Sequence[Row[Any]], batch_no: int) -> Row[Any]:
    matching = [row for row in rows if row.batch_no == batch_no]
    for row in matching:
        if row.state in (BatchState.CLOSED, BatchState.COMMITTED):
            return row
        if row.state == BatchState.OPEN:
            raise ValueError(
                f"batch {batch_no} is still open: it can be looked at once it has all its groups"
            )
    if matching:
        raise ValueError(
            f"batch {batch_no} was undone by a rewind or a quarantine: nothing was trained on it"
        )
    available = [row.batch_no for row in rows if row.state in (BatchState.CLOSED, BatchState.COMMITTED)]
    listed = f"0 to {max(available)}" if available else "none yet"
    raise ValueError(f"batch {batch_no} does not exist; known: {listed}")


async def _parent(connection: AsyncConnection, run_id: int, version: int) -> PolicyVersion:
    """The parent of `version`: training started from its weights."""
    result_version, source = policy_versions, policy_versions.alias()
    row = (
        await connection.execute(
            select(source)
            .join(
                result_version,
                (result_version.c.run_id == source.c.run_id) & (result_version.c.parent == source.c.version),
            )
            .where(result_version.c.run_id == run_id, result_version.c.version == version)
        )
    ).one()
    return from_wide_row(PolicyVersion, row)
