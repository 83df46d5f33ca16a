"""A stored batch, looked at again: what it was trained from and what its train steps said. Reads only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import BatchState
from orchestrator.pool.batches import Batch
from orchestrator.pool.policies import PolicyVersion, newest_version
from orchestrator.pool.tables import batches, policy_versions, train_steps


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A closed or committed batch; `trained_from` is the version whose weights it was (or will be) trained from."""

    batch: Batch
    trained_from: PolicyVersion
    metrics: Sequence[Mapping[str, Any]]  # of its train steps, in order; empty before the commit


async def stored_batch(connection: AsyncConnection, run_id: int, batch_no: int) -> StoredBatch:
    """The batch of that number that no rewind and no quarantine undid. ValueError says why there is none to look at."""
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
    before = newest if row.version is None else await _parent(connection, run_id, row.version)
    batch = Batch(row.batch_id, row.batch_no, BatchState(row.state), row.size, row.digest)
    return StoredBatch(batch, before, metrics.all())


def _wanted(rows: Sequence[Row[Any]], batch_no: int) -> Row[Any]:
    numbered = [row for row in rows if row.batch_no == batch_no]
    for row in numbered:
        if row.state in (BatchState.CLOSED, BatchState.COMMITTED):
            return row
        if row.state == BatchState.OPEN:
            raise ValueError(
                f"batch {batch_no} is still open: it can be looked at once it has all its groups"
            )
    if numbered:
        raise ValueError(
            f"batch {batch_no} was undone by a rewind or a quarantine: nothing was trained on it"
        )
    known = [row.batch_no for row in rows if row.state in (BatchState.CLOSED, BatchState.COMMITTED)]
    which = f"0 to {max(known)}" if known else "none yet"
    raise ValueError(f"there is no batch {batch_no}; known: {which}")


async def _parent(connection: AsyncConnection, run_id: int, version: int) -> PolicyVersion:
    """The version that `version` was trained from."""
    made, source = policy_versions, policy_versions.alias()
    row = (
        await connection.execute(
            select(source)
            .join(made, (made.c.run_id == source.c.run_id) & (made.c.parent == source.c.version))
            .where(made.c.run_id == run_id, made.c.version == version)
        )
    ).one()
    return PolicyVersion(row.version, row.parent, row.batch_no, row.path, row.manifest_sha)
