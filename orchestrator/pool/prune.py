"""Retention: drops an ended run's steps, routes, messages and prompts entirely. Groups, rewards, batches, digests and the history stay.

Each of the four tables has one partition per run. A partition is detached CONCURRENTLY, which takes no lock that blocks reads or writes of other
runs. The detached table is then dropped. The prune waits for readers that are active at its start, in turns of `LOCK_WAIT`.

`runs.pruned` is set first, in a transaction that refuses runs that may not be pruned. From then on the run accepts no step, and the audit reports
"pruned". The next prune continues a killed one. Two concurrent prunes do no harm.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from sqlalchemy import ColumnElement, delete, func, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import BatchState, RunState
from orchestrator.pool.rows import member
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.tables import artifacts, batches, dead_letters, groups, runs, tool_calls
from orchestrator.pool.transact import transact
from orchestrator.runtime.failpoints import boundary
from orchestrator.runtime.log import get

log = get(__name__)

PARTITIONED = ("steps", "step_routes", "trained_steps", "messages", "prompts")
UNPARTITIONED = (tool_calls, artifacts)  # of the same trajectories, few and small: plain rows
# Other locks on these tables (for a new run's partitions, for example) wait at most this long.
LOCK_WAIT = "1s"
PATIENCE_S = 60.0
OLDEST_DAYS = 36_500  # a hundred years: PostgreSQL's dates are limited
_NO_LOCK, _UNFINISHED, _NO_TABLE = "55P03", "55000", "42P01"
"""lock_not_available · another detach was interrupted, or another process finished it · another process has detached it"""


@dataclass(frozen=True, slots=True)
class Held:
    """The data of a run in one table. `size`: bytes with indexes; None if its rows share a table with rows of other runs."""

    table: str
    rows: int
    size: int | None


async def check_prunable(connection: AsyncConnection, run: StoredRun) -> None:
    """Raise ConfigurationError, one sentence, if the data may still be needed."""
    if run.state != RunState.ENDED:
        raise ConfigurationError(
            f"run {quoted(run.name)} is {run.state}: only an ended run can be pruned; `penstock run end -c DIRECTORY`, with the directory of that"
            " run, ends it"
        )
    closed = await connection.scalar(
        select(func.min(batches.c.batch_no)).where(
            batches.c.run_id == run.run_id, batches.c.state.in_([BatchState.OPEN, BatchState.CLOSED])
        )
    )
    if closed is not None:
        raise ConfigurationError(
            f"batch {closed} of run {quoted(run.name)} is claimed and not committed: the trainer still needs its steps"
        )
    open_groups = await connection.scalar(
        select(func.count()).where(groups.c.run_id == run.run_id, ~groups.c.done)
    )
    if open_groups:
        raise ConfigurationError(
            f"{open_groups} groups of run {quoted(run.name)} are still open (evaluations or recordings): let them end first"
        )


async def held(connection: AsyncConnection, run_id: int) -> list[Held]:
    """The data that a prune of the run would drop."""
    found = []
    for table in PARTITIONED:
        partition = f"{table}_{run_id}"
        if await connection.scalar(text("SELECT to_regclass(:p) IS NULL"), {"p": partition}):
            continue
        size = await connection.scalar(
            text("SELECT pg_total_relation_size(to_regclass(:p))"), {"p": partition}
        )
        rows = await connection.scalar(text(f"SELECT count(*) FROM {partition}"))
        found.append(Held(partition, int(rows or 0), int(size or 0)))
    for unpartitioned in UNPARTITIONED:
        rows = await connection.scalar(select(func.count()).where(unpartitioned.c.run_id == run_id))
        if rows:
            found.append(Held(unpartitioned.name, int(rows), None))
    return found


async def begin(connection: AsyncConnection, run: StoredRun) -> None:
    """Mark the run as pruned. Raises ConfigurationError like `check_prunable`. Nothing can be added to the run in the meantime."""
    locked = (
        await connection.execute(select(runs.c.state).where(runs.c.run_id == run.run_id).with_for_update())
    ).one()
    await check_prunable(
        connection,
        StoredRun(run_id=run.run_id, name=run.name, state=member(RunState, locked.state), config=run.config),
    )
    await connection.execute(
        update(runs)
        .where(runs.c.run_id == run.run_id, runs.c.pruned.is_(None))
        .values(pruned=func.clock_timestamp())
    )


async def drop(engine: AsyncEngine, run_id: int, patience_s: float = PATIENCE_S) -> None:
    """Drop everything that `held` lists for a marked run. Raises ConfigurationError if a reader stays for `patience_s` seconds."""
    async with _alone(engine) as connection:
        for table in PARTITIONED:
            with anyio.move_on_after(patience_s) as waiting:
                await _detach(connection, table, run_id)
                await _without(connection, f"DROP TABLE IF EXISTS {table}_{run_id}", at="prune.drop")
            if waiting.cancelled_caught:
                raise ConfigurationError(
                    f"something has been reading {table} for {patience_s:g} s (see pg_stat_activity); run the same command again later"
                )

    async def delete_rows(connection: AsyncConnection) -> None:
        for rows in UNPARTITIONED:
            await connection.execute(delete(rows).where(rows.c.run_id == run_id))

    await transact(engine, delete_rows, at="person.commit")


async def old_letters(connection: AsyncConnection, run_id: int, older_than_days: float) -> int:
    """How many dead messages of the run are older. Raises ConfigurationError, one sentence, for an invalid age."""
    found = select(func.count()).select_from(dead_letters).where(*_older(run_id, older_than_days))
    return int(await connection.scalar(found) or 0)


async def drop_letters(connection: AsyncConnection, run_id: int, older_than_days: float) -> int:
    """Delete them; returns how many. Raises as `old_letters` does."""
    deleted = await connection.execute(delete(dead_letters).where(*_older(run_id, older_than_days)))
    return deleted.rowcount


def _older(run_id: int, days: float) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    if not 0 <= days <= OLDEST_DAYS:  # also refuses NaN
        raise ConfigurationError(
            f"the age of dead messages must be 0 (all of them) to {OLDEST_DAYS:,} days, not {days:g}"
        )
    cutoff = func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, days * 86400)
    return dead_letters.c.run_id == run_id, dead_letters.c.at < cutoff


@asynccontextmanager
async def _alone(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection for statements that do not run in a transaction and that wait for locks in turns."""
    async with engine.connect() as base:
        connection = await base.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text(f"SET lock_timeout = '{LOCK_WAIT}'"))
        try:
            yield connection
        finally:
            await connection.invalidate()  # its settings must not leak into the pool


async def _detach(connection: AsyncConnection, table: str, run_id: int) -> None:
    """Repeat until the partition is detached. At most one partition of a table is half detached: it is finished first."""
    while True:
        states = await connection.execute(
            text(
                "SELECT c.relname, i.inhdetachpending FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
                "WHERE i.inhparent = CAST(:table AS regclass) AND (i.inhdetachpending OR c.relname = :own)"
            ),
            {"table": table, "own": f"{table}_{run_id}"},
        )
        pending = {row.relname: row.inhdetachpending for row in states}
        half_detached = [name for name, unfinished in pending.items() if unfinished]
        if half_detached:
            await _without(
                connection,
                f"ALTER TABLE {table} DETACH PARTITION {half_detached[0]} FINALIZE",
                at="prune.detach",
                once=True,
            )
        elif pending:
            await _without(
                connection,
                f"ALTER TABLE {table} DETACH PARTITION {table}_{run_id} CONCURRENTLY",
                at="prune.detach",
                once=True,
            )
        else:
            return


async def _without(connection: AsyncConnection, statement: str, *, at: str, once: bool = False) -> None:
    """Run the statement as soon as its locks are free. It commits by itself: `at` is its failpoint. `once`: also return if the locks were not
    free; the statement may be half done, or done by another process."""
    while True:
        try:
            await boundary(at, lambda: connection.execute(text(statement)))
            return
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in (_NO_LOCK, _UNFINISHED, _NO_TABLE):
                raise
            log.info("prune.waits", statement=statement, reason=str(error.orig).partition("\n")[0])
        await anyio.sleep(0.1)
        if once:
            return
