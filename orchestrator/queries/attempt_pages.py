"""Recorded attempts one by one, in the order of their keys, read page by page: for exports and other readers of whole trajectories."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ArgumentError, ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.pool.engine import limit_statements
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.attempt_filters import AttemptFilters, Bound
from orchestrator.queries.attempts import PAGE, Key, RecordedAttempt, domains, has_domain, page

STATEMENT_S = 600.0  # upper limit; one page takes milliseconds, the count one pass


@asynccontextmanager
async def snapshot(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A short transaction in which all statements of a page see the same snapshot."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        await limit_statements(connection, STATEMENT_S)
        yield connection


async def each_attempt(
    engine: AsyncEngine,
    run: StoredRun,
    wanted: AttemptFilters,
    bound: Bound,
    *,
    after: Key | None = None,
    limit: int | None = None,
) -> AsyncGenerator[RecordedAttempt, None]:
    """The attempts after `after`, at most `limit`. No transaction is open between pages. Raises ValueError if a step's tree is damaged."""
    left = limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        async with snapshot(engine) as connection:
            found = await page(connection, run, wanted, bound, after, size)
        for attempt in found:
            yield attempt
            after = attempt.key
        if len(found) < size:
            return
        left = None if left is None else left - size


async def check_wanted(connection: AsyncConnection, run: StoredRun, wanted: AttemptFilters) -> None:
    """Raise ConfigurationError if the run was pruned, ArgumentError if it has no domain of that name."""
    if run.pruned is not None:
        raise ConfigurationError(
            f"run {quoted(run.name)} was pruned at {run.pruned:%Y-%m-%d %H:%M}: its steps are gone, so there is nothing to export"
        )
    if wanted.domain is not None and not await has_domain(connection, run.run_id, wanted.domain):
        known = await domains(connection, run.run_id)
        raise ArgumentError(
            "domain",
            f"{quoted(wanted.domain)}: run {quoted(run.name)} has none of that name; known: {', '.join(known) or 'none'}",
        )
