"""Policy versions: what was published, newest first."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.pool.tables import batches, policy_versions, train_steps


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One row of policy_versions."""

    version: int
    parent: int | None
    batch_no: int | None
    path: str
    manifest_sha: str


async def newest_version(connection: AsyncConnection, run_id: int) -> PolicyVersion | None:
    """The version that should serve: the newest that no rewind superseded."""
    row = (
        await connection.execute(
            select(policy_versions)
            .where(policy_versions.c.run_id == run_id, policy_versions.c.superseded_by.is_(None))
            .order_by(policy_versions.c.version.desc())
            .limit(1)
        )
    ).first()
    return PolicyVersion(row.version, row.parent, row.batch_no, row.path, row.manifest_sha) if row else None


async def next_version(connection: AsyncConnection, run_id: int) -> int:
    """A number that was never used in this run."""
    last = await connection.scalar(
        select(func.max(policy_versions.c.version)).where(policy_versions.c.run_id == run_id)
    )
    return 0 if last is None else int(last) + 1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training is."""

    committed_batches: int
    train_steps: int


async def progress(connection: AsyncConnection, run_id: int) -> Progress:
    """Committed batches and their train steps, without voided ones."""
    row = (
        await connection.execute(
            select(
                func.count(func.distinct(batches.c.batch_id)).label("b"),
                func.count(train_steps.c.train_step).label("t"),
            )
            .select_from(
                batches.join(train_steps, train_steps.c.batch_id == batches.c.batch_id, isouter=True)
            )
            .where(batches.c.run_id == run_id, batches.c.state == "committed")
        )
    ).one()
    return Progress(row.n_batches, row.n_steps)
