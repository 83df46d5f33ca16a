"""The dashboard's connection to the data pool. Postgres may be away at the start and at any later time; requests then fail with one
sentence.

Reads run as penstock_reader, in a read-only transaction with a time limit; commands run once, as the login itself.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

import anyio
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import PenstockError, ServiceError
from orchestrator.pool.engine import Role, limit_statements
from orchestrator.pool.opened import opened
from orchestrator.pool.transact import DRIVER_ERRORS, once, passing

T = TypeVar("T")
PATIENCE_S = 8.0
STATEMENT_S = 5.0
CANCELED = "57014"  # SQLSTATE of a statement that exceeded its time limit


class TooSlow(PenstockError):
    """A query that Postgres did not answer within its time limit."""


class Database:
    """Opens its engines on first use, and retries at the next use if that failed. An async context manager."""

    def __init__(self, url: str, *, size: int = 6) -> None:
        self._url = url
        self._size = size
        self._stack = AsyncExitStack()
        self._engines: dict[Role, AsyncEngine] = {}
        self._opening = anyio.Lock()

    async def __aenter__(self) -> "Database":
        await self._stack.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _engine(self, role: Role) -> AsyncEngine:
        async with self._opening:
            if role not in self._engines:
                async with AsyncExitStack() as stack:
                    engine = await stack.enter_async_context(
                        opened(
                            self._url,
                            role,
                            size=self._size if role is Role.READER else 1,
                            name="penstock-web",
                        )
                    )
                    self._stack.push_async_exit(stack.pop_all())
                self._engines[role] = engine
            return self._engines[role]

    async def read(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """The result of `work`. Raises ServiceError, one sentence, if Postgres is away; TooSlow if a statement takes too long."""
        try:
            with anyio.fail_after(PATIENCE_S):
                engine = await self._engine(Role.READER)
                async with engine.connect() as connection:
                    await limit_statements(connection, STATEMENT_S)
                    return await work(connection)
        except TimeoutError:
            raise ServiceError(f"PostgreSQL has not answered within {PATIENCE_S:g} s") from None
        except DRIVER_ERRORS as error:
            if _state(error) == CANCELED:
                raise TooSlow(f"this takes PostgreSQL longer than {STATEMENT_S:g} s: ask for less") from None
            if not passing(error):
                raise
            raise ServiceError("PostgreSQL is away; this page continues when it is back") from error

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """`work` in one transaction, tried once. Raises ServiceError if Postgres is away, or lost before it confirmed the commit."""
        try:
            with anyio.fail_after(PATIENCE_S):
                engine = await self._engine(Role.OWNER)
                return await once(engine, work, at="person.commit")
        except TimeoutError:
            raise ServiceError(
                f"PostgreSQL has not answered within {PATIENCE_S:g} s: look whether it was done, and ask again if it was not"
            ) from None


def _state(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(getattr(cause, "sqlstate", None) or "")
