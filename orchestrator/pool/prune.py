"""Retention: an ended run's steps, routes, messages and prompts are dropped whole. Groups, rewards, batches, digests and the history stay.

Each of the four tables has one partition per run. A partition is detached CONCURRENTLY, which takes no lock that reads or writes of other
runs would wait for; then it is nobody's, and dropped. What is still reading when it begins is waited for, in turns of `LOCK_WAIT`.

`runs.pruned` is set first, in a transaction that refuses what may not be pruned: from then on the run takes no step, and the audit says
"pruned". A prune that was killed is continued by the next one; two at once do no harm.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from sqlalchemy import ColumnElement, delete, func, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import BatchState
from orchestrator.failpoints import boundary
from orchestrator.log import get
from orchestrator.pool.runs import Run
from orchestrator.pool.tables import artifacts, batches, dead_letters, groups, runs, tool_calls
from orchestrator.pool.transact import transact

log = get(__name__)

PARTITIONED = ("steps", "step_routes", "trained_steps", "messages", "prompts")
BESIDE = (tool_calls, artifacts)  # of the same trajectories, few and small: plain rows
LOCK_WAIT = (
    "1s"  # whoever wants another lock on these tables (a new run's partitions, say) waits no longer than this
)
PATIENCE_S = 60.0
OLDEST_DAYS = 36_500  # a hundred years: PostgreSQL's calendar ends somewhere
_NO_LOCK, _UNFINISHED, _NO_TABLE = "55P03", "55000", "42P01"
"""lock_not_available · another detach was broken off, or was finished by somebody else · somebody else has detached it"""


@dataclass(frozen=True, slots=True)
class Held:
    """What one table holds of a run. `size` counts bytes with indexes; None where its rows share a table with those of other runs."""

    table: str
    rows: int
    size: int | None


async def check_prunable(connection: AsyncConnection, run: Run) -> None:
    """Raise ConfigurationError, one sentence, for what may still be asked for."""
    if run.state != "ended":
        raise ConfigurationError(
            f"run {run.name!r} is {run.state}: only an ended run can be pruned; `penstock run end` ends it"
        )
    closed = await connection.scalar(
        select(func.min(batches.c.batch_no)).where(
            batches.c.run_id == run.run_id, batches.c.state.in_([BatchState.OPEN, BatchState.CLOSED])
        )
    )
    if closed is not None:
        raise ConfigurationError(
            f"batch {closed} of run {run.name!r} is claimed and not committed: the trainer still needs its steps"
        )
    left = await connection.scalar(select(func.count()).where(groups.c.run_id == run.run_id, ~groups.c.done))
    if left:
        raise ConfigurationError(
            f"{left} groups of run {run.name!r} are still open (evaluations or recordings): let them end first"
        )


async def held(connection: AsyncConnection, run_id: int) -> list[Held]:
    """What a prune of the run would drop."""
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
    for beside in BESIDE:
        rows = await connection.scalar(select(func.count()).where(beside.c.run_id == run_id))
        if rows:
            found.append(Held(beside.name, int(rows), None))
    return found


async def begin(connection: AsyncConnection, run: Run) -> None:
    """Mark the run as pruned. Raises ConfigurationError as `check_prunable` does; nobody can add to the run meanwhile."""
    locked = (
        await connection.execute(select(runs.c.state).where(runs.c.run_id == run.run_id).with_for_update())
    ).one()
    await check_prunable(connection, Run(run.run_id, run.name, locked.state, run.config))
    await connection.execute(
        update(runs)
        .where(runs.c.run_id == run.run_id, runs.c.pruned.is_(None))
        .values(pruned=func.clock_timestamp())
    )


async def drop(engine: AsyncEngine, run_id: int, patience_s: float = PATIENCE_S) -> None:
    """Drop what `held` lists of a run that is marked. Raises ConfigurationError when something keeps reading for `patience_s` seconds."""
    async with _alone(engine) as connection:
        for table in PARTITIONED:
            with anyio.move_on_after(patience_s) as waiting:
                await _detach(connection, table, run_id)
                await _without(connection, f"DROP TABLE IF EXISTS {table}_{run_id}", at="prune.drop")
            if waiting.cancelled_caught:
                raise ConfigurationError(
                    f"something has been reading {table} for {patience_s:g} s (see pg_stat_activity); run the same command again later"
                )

    async def beside(connection: AsyncConnection) -> None:
        for rows in BESIDE:
            await connection.execute(delete(rows).where(rows.c.run_id == run_id))

    await transact(engine, beside, at="person.commit")


async def old_letters(connection: AsyncConnection, run_id: int, older_than_days: float) -> int:
    """How many dead messages of the run are older. Raises ConfigurationError, one sentence, for what is no age."""
    found = select(func.count()).select_from(dead_letters).where(*_older(run_id, older_than_days))
    return int(await connection.scalar(found) or 0)


async def drop_letters(connection: AsyncConnection, run_id: int, older_than_days: float) -> int:
    """Delete them; returns how many. Raises as `old_letters` does."""
    done = await connection.execute(delete(dead_letters).where(*_older(run_id, older_than_days)))
    return done.rowcount


def _older(run_id: int, days: float) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    if not 0 <= days <= OLDEST_DAYS:  # what is not a number neither
        raise ConfigurationError(
            f"{days:g} days are no age of dead messages: give 0, which is all of them, to {OLDEST_DAYS:,}"
        )
    before = func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, days * 86400)
    return dead_letters.c.run_id == run_id, dead_letters.c.at < before


@asynccontextmanager
async def _alone(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection for statements that allow no transaction around them, and that wait for locks in turns."""
    async with engine.connect() as plain:
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text(f"SET lock_timeout = '{LOCK_WAIT}'"))
        try:
            yield connection
        finally:
            await connection.invalidate()  # its settings are nobody else's


async def _detach(connection: AsyncConnection, table: str, run_id: int) -> None:
    """Until the partition is no partition any more. At most one partition of a table is half detached: it is finished first."""
    while True:
        states = await connection.execute(
            text(
                "SELECT c.relname, i.inhdetachpending FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
                "WHERE i.inhparent = CAST(:table AS regclass) AND (i.inhdetachpending OR c.relname = :own)"
            ),
            {"table": table, "own": f"{table}_{run_id}"},
        )
        pending = {row.relname: row.inhdetachpending for row in states}
        half = [name for name, unfinished in pending.items() if unfinished]
        if half:
            await _without(
                connection,
                f"ALTER TABLE {table} DETACH PARTITION {half[0]} FINALIZE",
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
    """Run it as soon as its locks are free. It commits by itself: `at` is its failpoint. `once`: return also where they were not; it may have
    been half done, or done by somebody else."""
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
