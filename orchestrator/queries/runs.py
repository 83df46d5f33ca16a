"""The runs of a database, one line each, and the heads of one run."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import RunState
from orchestrator.pool.rows import from_row


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run. Times are seconds since 1970; `batches`: committed ones, `version`: the newest published one (None: none yet)."""

    name: str
    state: RunState
    created: float
    ended: float | None
    pruned: bool
    batches: int
    version: int | None


_RUNS = text(
    """
    SELECT r.name, r.state, extract(epoch FROM r.created)::float8 AS created, extract(epoch FROM r.ended)::float8 AS ended,
           r.pruned IS NOT NULL AS pruned,
           coalesce((SELECT max(batch_no) + 1 FROM batches b WHERE b.run_id = r.run_id AND b.state = 'committed'), 0) AS batches,
           (SELECT max(version) FROM policy_versions v WHERE v.run_id = r.run_id AND v.superseded_by IS NULL) AS version
    FROM runs r ORDER BY r.run_id DESC LIMIT :limit
    """
)


async def runs(connection: AsyncConnection, limit: int = 200) -> list[RunLine]:
    """The newest `limit` runs, newest first."""
    return [from_row(RunLine, row) for row in await connection.execute(_RUNS, {"limit": limit})]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeads:
    """Progress of a run. Times are seconds since 1970; `dispatched`: groups that got a queue position; `version` as in RunLine."""

    created: float
    ended: float | None
    dispatched: int
    version: int | None
    batches: int
    trained_groups: int
    train_steps: int


_HEADS = text(
    """
    SELECT extract(epoch FROM r.created)::float8 AS created, extract(epoch FROM r.ended)::float8 AS ended, q.next_seq AS dispatched,
           (SELECT max(version) FROM policy_versions v WHERE v.run_id = r.run_id AND v.superseded_by IS NULL) AS version,
           (SELECT b.batch_no + 1 FROM batches b WHERE b.run_id = r.run_id AND b.state = 'committed' ORDER BY b.batch_no DESC LIMIT 1) AS batches,
           (SELECT b.groups_so_far FROM batches b WHERE b.run_id = r.run_id AND b.state = 'committed'
             ORDER BY b.batch_no DESC LIMIT 1) AS trained_groups,
           (SELECT count(*) FROM train_steps t JOIN batches b ON b.batch_id = t.batch_id AND b.state = 'committed'
             WHERE t.run_id = r.run_id) AS train_steps
    FROM runs r JOIN queue q USING (run_id) WHERE r.run_id = :run
    """
)


async def run_heads(connection: AsyncConnection, run_id: int) -> RunHeads:
    """The heads of one run."""
    row = (await connection.execute(_HEADS, {"run": run_id})).one()
    return from_row(
        RunHeads,
        row,
        batches=row.batches or 0,
        trained_groups=row.trained_groups or 0,
        train_steps=row.train_steps or 0,
    )
