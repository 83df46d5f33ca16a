"""One transaction, repeated while Postgres is away or chose it as a victim: writers block and retry, nothing is lost."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.log import get

log = get(__name__)
T = TypeVar("T")

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 5.0
# SQLSTATE classes that say "try again": connection, resources (disk full, too many connections), operator intervention,
# and transaction rollback (deadlock, serialisation).
PASSING = ("08", "53", "57", "40")


def passing(error: BaseException) -> bool:
    """Whether the same transaction may succeed later."""
    if isinstance(error, (OSError, PoolTimeout, TimeoutError, asyncpg.InterfaceError)):
        return True
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        return error.connection_invalidated or (str(state)[:2] in PASSING if state else passing_cause(error))
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate)[:2] in PASSING
    return False


def passing_cause(error: DBAPIError) -> bool:
    """SQLAlchemy wraps the driver's error twice; look at what it stands for."""
    cause = error.orig.__cause__ if error.orig is not None else None
    return cause is not None and passing(cause)


async def transact(engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    """Run `work` in one transaction and return its value once committed. Bounded by the caller's cancel scope only.

    `work` may run several times; a commit whose answer was lost is repeated, so its effects must be idempotent (compare-and-set,
    unique keys).
    """
    wait = FIRST_WAIT_S
    while True:
        try:
            async with engine.begin() as connection:
                return await work(connection)
        except (
            OSError,
            PoolTimeout,
            TimeoutError,
            DBAPIError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
        ) as error:
            if not passing(error):
                raise
            log.warning(
                "pool.retry",
                error=type(error).__name__,
                detail=str(error).splitlines()[0][:200],
                wait_s=round(wait, 2),
            )
        await anyio.sleep(wait * random.uniform(0.5, 1.5))
        wait = min(LONGEST_WAIT_S, wait * 2)
