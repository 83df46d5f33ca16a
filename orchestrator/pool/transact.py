"""One transaction, repeated while Postgres is away or chose it as a victim: writers block and retry, nothing is lost."""

import random
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

import anyio
import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator import failpoints
from orchestrator.clock import clock
from orchestrator.contracts.errors import ServiceError
from orchestrator.log import get
from orchestrator.metrics import PoolMetrics, measured
from orchestrator.progress import waiting_for

log = get(__name__)
T = TypeVar("T")
_told: ContextVar[list[Callable[[], object]] | None] = ContextVar("told when committed", default=None)

FIRST_WAIT_S = 0.05
# SQLSTATE classes that say "try again": connection, transaction rollback (deadlock, serialisation), resources (disk full, too many
# connections), operator intervention (shutdown, starting up), system (input or output error).
PASSING = ("08", "40", "53", "57", "58")
IDLE_ENDED = "25P03"  # the server ended a transaction in which this process was silent for too long: it was stopped, or starved
CONTENT = ("22", "23")  # data exception, constraint violation


def _state(error: BaseException) -> str:
    """The SQLSTATE of the driver's error, wrapped by SQLAlchemy or not; empty when Postgres did not give one."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(getattr(cause, "sqlstate", None) or "")


def passing(error: BaseException) -> bool:
    """Whether the same transaction may succeed later: the server or the way to it is at fault."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    state = _state(error)
    return isinstance(error, (OSError, PoolTimeout)) or state[:2] in PASSING or state == IDLE_ENDED


def of_content(error: DBAPIError) -> bool:
    """Whether the values that were to be written are at fault, so that the same transaction fails for ever."""
    return _state(error)[:2] in CONTENT


def sentence(error: DBAPIError) -> str:
    """What Postgres (or the driver) says, as one line without the statement."""
    return str(error.orig).partition("\n")[0].rpartition("'>: ")[2] or type(error.orig).__name__


def when_committed(tell: Callable[[], object]) -> None:
    """Called by the work of a transaction that counts or logs what it did: `tell` is called once, after the commit, and not for a try that was
    rolled back. Outside of `transact` and `once`: at once."""
    told = _told.get()
    if told is None:
        tell()
    else:
        told.append(tell)


async def _attempt(engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]], at: str) -> T:
    began = time.perf_counter()
    told: list[Callable[[], object]] = []
    before = _told.set(told)
    try:
        async with engine.begin() as connection:
            done = await work(connection)
            if failpoints.directory is not None:
                await failpoints.reach(f"{at}.before")
    finally:
        _told.reset(before)
    for tell in told:
        tell()
    measured(PoolMetrics).transaction_s.labels(at).observe(time.perf_counter() - began)
    if failpoints.directory is not None:
        await failpoints.reach(f"{at}.after")
        if failpoints.doubled(at):
            return await _attempt(engine, work, at)
    return done


async def once(engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]], *, at: str) -> T:
    """Run `work` in one transaction, for a person, and return its value once committed. `at` names the commit in `failpoints.BOUNDARIES`:
    before, the work is done and not committed; after, it is committed and nobody was told. Raises ServiceError when Postgres is lost
    meanwhile."""
    try:
        return await _attempt(engine, work, at)
    except (OSError, PoolTimeout, DBAPIError, asyncpg.PostgresError) as error:
        if not passing(error):
            raise
        raise ServiceError(
            "PostgreSQL was lost before it could say whether this was done: look, and ask again if it was not"
        ) from error


async def transact(
    engine: AsyncEngine,
    work: Callable[[AsyncConnection], Awaitable[T]],
    *,
    at: str,
    longest_wait_s: float | None = None,
) -> T:
    """As `once`, repeated while Postgres is away. Bounded by the caller's cancel scope only.

    `work` may run several times; a commit whose answer was lost is repeated, so its effects must be idempotent (compare-and-set,
    unique keys). Who must be heard soon after Postgres is back, as a lease's keeper must, asks for a shorter `longest_wait_s` between tries.
    """
    with waiting_for("postgres"):
        return await _until_committed(engine, work, at, longest_wait_s)


async def _until_committed(
    engine: AsyncEngine,
    work: Callable[[AsyncConnection], Awaitable[T]],
    at: str,
    longest_wait_s: float | None,
) -> T:
    wait, longest = FIRST_WAIT_S, longest_wait_s or clock().pool_retry_s
    while True:
        try:
            return await _attempt(engine, work, at)
        except (OSError, PoolTimeout, DBAPIError, asyncpg.PostgresError) as error:
            if not passing(error):
                raise
            measured(PoolMetrics).retries.labels(_state(error)[:2] or "none").inc()
            log.warning(
                "pool.retry",
                error=type(error).__name__,
                detail=str(error).partition("\n")[0][:200],
                wait_s=round(wait, 2),
            )
        await anyio.sleep(wait * random.uniform(0.5, 1.5))
        wait = min(longest, wait * 2)
