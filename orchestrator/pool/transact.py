"""One transaction, repeated while Postgres is unreachable or aborts it: writers block and retry, nothing is lost."""

import errno
import time
import traceback
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final, TypeVar

import anyio
import asyncpg
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ServiceError
from orchestrator.runtime import failpoints
from orchestrator.runtime.backoff import backoff
from orchestrator.runtime.liveness import waiting_for
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import PoolMetrics, measured
from orchestrator.settings.timeouts import timeouts

log = get(__name__)
T = TypeVar("T")
_on_commit: ContextVar[list[Callable[[], object]] | None] = ContextVar("callbacks on commit", default=None)

FIRST_WAIT_S = 0.05
# SQLSTATE classes of errors to retry: connection, transaction rollback (deadlock, serialisation), resources (disk full, too many
# connections), operator intervention (shutdown, starting up), system (input or output error).
PASSING = ("08", "40", "53", "57", "58")
IDLE_ENDED = "25P03"  # the server ended a transaction of a process that was silent: stopped or starved
CONTENT = (
    "22",
    "23",
    "54",
)  # data exception, constraint violation, a value over a limit of Postgres (of an index row, of nesting)
MAX_BROKEN = 3
PASSING_ERRNOS: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
        *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOBUFS),
    }
)
"""Errors that pass: of a disk that is full or away, of a process that has too many files open, of a network."""
DRIVER_ERRORS = (OSError, PoolTimeout, StatementError, asyncpg.PostgresError, asyncpg.InternalClientError)
"""Errors that a statement or a connection may raise for reasons of the server, the network, the client or the values: `passing` tells them apart."""


class TransactionEnded(Exception):
    """Postgres has ended the same transaction several times, because it was silent."""


class NotReady(Exception):
    """Raised by `work` that needs a value which is still being computed: `transact` rolls it back, awaits `ready`, and repeats it."""

    def __init__(self, ready: Callable[[], Awaitable[None]]) -> None:
        super().__init__("a value that the transaction needs is still being computed")
        self.ready = ready


def _state(error: BaseException) -> str:
    """The SQLSTATE of the driver's error, wrapped by SQLAlchemy or not; empty if Postgres sent none."""
    return str(getattr(_cause(error), "sqlstate", None) or "")


def _cause(error: BaseException) -> BaseException | None:
    return error.orig if isinstance(error, StatementError) else error


def broken_client(error: BaseException) -> bool:
    """Whether the client has lost track of its connection ("cannot switch to state …; another operation is in progress"): what a cancellation or a
    broken connection leaves. The connection is lost; values and configuration are not at fault."""
    return isinstance(_cause(error), asyncpg.InternalClientError)


def passing(error: BaseException) -> bool:
    """Whether the same transaction may succeed later: the server, the network, the connection or a full disk is at fault. A file of ours that
    is absent or not accessible is not: its error comes from our code. That of a Unix socket of PostgreSQL comes from the driver."""
    if broken_client(error) or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return True
    if isinstance(error, OSError):
        return (
            isinstance(error, ConnectionError | TimeoutError)
            or error.errno in PASSING_ERRNOS
            or _of_driver(error)
        )
    state = _state(error)
    return isinstance(error, PoolTimeout) or state[:2] in PASSING or state == IDLE_ENDED


def _of_driver(error: BaseException) -> bool:
    """Whether the driver raised the error."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(
        frame.f_globals.get("__name__", "").partition(".")[0] == asyncpg.__name__ for frame, _ in frames
    )


def _ended_idle(error: BaseException, lasted_s: float) -> bool:
    """Whether Postgres ended a transaction for its silence. The driver reports that, as the cause of a closed connection where the process did
    nothing else either. If it read the end before the next statement, it finds the connection closed without a reason."""
    closed = isinstance(error, DBAPIError) and error.connection_invalidated and not _state(error)
    cause = _cause(error)
    while cause is not None:
        if getattr(cause, "sqlstate", None) == IDLE_ENDED:
            return True
        cause = cause.__cause__
    return closed and lasted_s >= timeouts().pool_idle_s


def of_content(error: BaseException) -> bool:
    """Whether the written values are at fault, so that the same transaction always fails."""
    return _state(error)[:2] in CONTENT


def sentence(error: DBAPIError) -> str:
    """The error text of Postgres (or the driver), as one line without the statement."""
    return str(error.orig).partition("\n")[0].rpartition("'>: ")[2] or type(error.orig).__name__


def when_committed(callback: Callable[[], object]) -> None:
    """Register a count or log of a transaction's work: `callback` is called once, after the commit, and not for a try that was
    rolled back. Outside of `transact` and `once` it is called at once."""
    callbacks = _on_commit.get()
    if callbacks is None:
        callback()
    else:
        callbacks.append(callback)


async def _attempt(engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]], at: str) -> T:
    started = time.perf_counter()
    callbacks: list[Callable[[], object]] = []
    token = _on_commit.set(callbacks)
    try:
        async with engine.begin() as connection:
            result = await work(connection)
            if failpoints.directory is not None:
                await failpoints.reach(f"{at}.before")
    finally:
        _on_commit.reset(token)
    for callback in callbacks:
        callback()
    measured(PoolMetrics).transaction_s.labels(at).observe(time.perf_counter() - started)
    if failpoints.directory is not None:
        await failpoints.reach(f"{at}.after")
        if failpoints.doubled(at):
            return await _attempt(engine, work, at)
    return result


async def once(engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]], *, at: str) -> T:
    """Run `work` in one transaction, for a person, and return its value once committed. `at` names the commit in `failpoints.BOUNDARIES`:
    before it, the work is done but not committed; after it, it is committed but not reported. Raises ServiceError if Postgres is lost
    during it."""
    try:
        return await _attempt(engine, work, at)
    except DRIVER_ERRORS as error:
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
    most_idle_ends: int | None = None,
    wait_ready: bool = True,
) -> T:
    """Like `once`, repeated while Postgres is unreachable. Only the caller's cancel scope bounds it.

    Postgres also ends a transaction that sends nothing for `timeouts.pool_idle_s`. A process that was stopped repeats it. `work` that is
    silent for so long would be repeated without end: with `most_idle_ends`, TransactionEnded is raised after so many of these ends. A client that
    breaks `MAX_BROKEN` times in a row is broken by `work`, not by its connection: its error is raised.

    `work` that needs a value of a long computation raises NotReady: no transaction, and no lock, is held while it is computed. Without `wait_ready`
    it is raised: the caller has other work until then.

    `work` may run several times. A commit without a received answer is repeated, so its effects must be idempotent (compare-and-set,
    unique keys). A caller that must write soon after Postgres returns, such as a lease holder, sets a shorter `longest_wait_s` between tries.
    """
    while True:
        try:
            with waiting_for("postgres"):
                return await _until_committed(engine, work, at, longest_wait_s, most_idle_ends)
        except NotReady as error:
            if not wait_ready:
                raise
            ready = error.ready
        await ready()


async def _until_committed(
    engine: AsyncEngine,
    work: Callable[[AsyncConnection], Awaitable[T]],
    at: str,
    longest_wait_s: float | None,
    most_idle_ends: int | None,
) -> T:
    delays = backoff(FIRST_WAIT_S, longest_wait_s or timeouts().pool_retry_s)
    idle_ends = broken = 0
    while True:
        started = time.monotonic()
        try:
            return await _attempt(engine, work, at)
        except DRIVER_ERRORS as error:
            broken = broken + 1 if broken_client(error) else 0
            if not passing(error) or broken == MAX_BROKEN:
                raise
            idle_ends += _ended_idle(error, time.monotonic() - started)
            if idle_ends == most_idle_ends:
                raise TransactionEnded(
                    f"PostgreSQL ended its transaction {idle_ends} times, because nothing was sent for {timeouts().pool_idle_s:g} s"
                ) from error
            delay = next(delays)
            measured(PoolMetrics).retries.labels(_state(error)[:2] or "none").inc()
            log.warning(
                "pool.retry",
                error=type(error).__name__,
                detail=str(error).partition("\n")[0][:200],
                wait_s=round(delay, 2),
            )
        await anyio.sleep(delay)
