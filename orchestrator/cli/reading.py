"""How a command queries the data pool: as penstock_reader, within a time limit, with retries if it follows a run."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import anyio

from orchestrator.contracts.errors import PenstockError
from orchestrator.settings.config import Config

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from orchestrator.pool.runs import StoredRun

T = TypeVar("T")
STATEMENT_S = 30.0
AGAIN_S = 1.0


@dataclass(frozen=True)
class Reader:
    """A run and an engine to query it."""

    engine: "AsyncEngine"
    run: "StoredRun"

    async def ask(self, work: "Callable[[AsyncConnection], Awaitable[T]]") -> T:
        """The result of `work`. Raises PenstockError, one sentence, if Postgres is away or refuses."""
        from sqlalchemy.exc import DBAPIError, StatementError

        from orchestrator.pool.engine import limit_statements
        from orchestrator.pool.transact import DRIVER_ERRORS, passing, sentence

        try:
            async with self.engine.connect() as connection:
                await limit_statements(connection, STATEMENT_S)
                return await work(connection)
        except DRIVER_ERRORS as error:
            if passing(error):
                raise Away("PostgreSQL is away, or took too long") from error
            if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
                raise  # a mistake of ours
            raise PenstockError(sentence(error) if isinstance(error, DBAPIError) else str(error)) from error

    async def ask_until_answered(
        self, work: "Callable[[AsyncConnection], Awaitable[T]]", away: Callable[[str], None]
    ) -> T:
        """As `ask`, but retries while Postgres is away; `away` gets the reason once."""
        reported = False
        while True:
            try:
                return await self.ask(work)
            except Away as error:
                if not reported:
                    away(str(error))
                reported = True
            await anyio.sleep(AGAIN_S)


class Away(PenstockError):
    """Postgres did not answer; it may later."""


@asynccontextmanager
async def reading(config: Config, name: str) -> AsyncIterator[Reader]:
    """A reader of the configured run, named `name` in pg_stat_activity. PenstockError if the run is missing or the database has another
    revision."""
    from orchestrator.pool.engine import Role
    from orchestrator.pool.opened import opened_run

    async with opened_run(config, Role.READER, name=f"penstock-{name}") as (engine, run):
        yield Reader(engine, run)
