"""Connections to the data pool: asyncpg under SQLAlchemy, one engine per process, a role per kind of process."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import anyio
import asyncpg
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from orchestrator.clock import clock
from orchestrator.contracts.errors import ServiceError
from orchestrator.pool.transact import passing

CLOSE_S = 5.0
LOOK_S = 0.5
MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
REVISION = "0023"
"""The newest migration. Written here because every process checks it, and to ask Alembic takes each as long as all else that it imports."""


class Role(StrEnum):
    """Database roles made by the migrations. A process connects with its login and then takes one of these."""

    OWNER = ""  # the login itself: orchestrator and migrations
    GATEWAY = "penstock_gateway"
    RUNNER = "penstock_runner"
    TRAINER = "penstock_trainer"
    READER = "penstock_reader"


def sqlalchemy_url(url: str) -> str:
    """`postgresql://…` (or `postgres://…`) with the asyncpg driver named, and `sslmode` in its word for it."""
    for prefix in ("postgresql+asyncpg://", "postgresql://", "postgres://"):
        if url.startswith(prefix):
            place, mark, options = url.removeprefix(prefix).partition("?")
            return "postgresql+asyncpg://" + place + mark + re.sub(r"(^|&)sslmode=", r"\1ssl=", options)
    raise ServiceError(
        f"{url.split('@')[-1]!r} is not a PostgreSQL URL: use postgresql://user:password@host:port/database"
    )


@asynccontextmanager
async def open_engine(
    url: str,
    role: Role = Role.OWNER,
    *,
    size: int = 8,
    name: str = "penstock",
    patience_s: float = 0.0,
) -> AsyncIterator[AsyncEngine]:
    """An engine whose sessions have taken `role`. Raises ServiceError when the server cannot be reached within `patience_s` seconds, or
    refuses."""
    settings = {
        "application_name": name,
        "tcp_keepalives_idle": str(_keep_alive()[0]),
        "tcp_keepalives_interval": str(_keep_alive()[1]),
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(int(clock().pool_silence_s * 1000)),
    }
    if role is not Role.OWNER:
        settings["role"] = role.value
    if role is Role.READER:
        settings["default_transaction_read_only"] = "on"
    else:
        settings["idle_in_transaction_session_timeout"] = str(int(clock().pool_idle_s * 1000))
    engine = create_async_engine(
        sqlalchemy_url(url),
        pool_size=size,
        max_overflow=size,
        pool_pre_ping=True,
        connect_args={"server_settings": settings, "timeout": clock().pool_connect_s},
    )
    event.listen(engine.sync_engine, "connect", _break_when_silent)
    try:
        await _answers(engine, url, patience_s)
    except BaseException:
        await engine.dispose()
        raise
    try:
        yield engine
    finally:
        # Also when cancelled: a connection that is left half closed stays open at the server.
        with anyio.move_on_after(CLOSE_S, shield=True):
            await engine.dispose()


async def _answers(engine: AsyncEngine, url: str, patience_s: float) -> None:
    """Return once Postgres has answered. Raises ServiceError, one sentence, when it does not, or says no."""
    deadline = anyio.current_time() + patience_s
    while True:
        try:
            async with engine.connect() as connection:
                await connection.execute(text("select 1"))
            return
        except (OSError, asyncpg.PostgresError, DBAPIError) as error:
            if not passing(error) or anyio.current_time() >= deadline:
                said = str(error).partition("\n")[0] or "it does not answer"  # a time-out says nothing
                raise ServiceError(
                    f"PostgreSQL at {url.split('@')[-1]} cannot be used ({error.__class__.__name__}: {said}); "
                    "start it (`penstock up` does, where it is embedded) or check DATABASE_URL"
                ) from error
        await anyio.sleep(LOOK_S)


def _keep_alive() -> tuple[int, int]:
    """(seconds of silence before the first probe, between two), so that the third is missed after `clock.pool_silence_s`.

    A partition must not be waited for without end, nor hold locks; a server that is only stopped or busy still answers probes.
    """
    between = max(1, round(clock().pool_silence_s / 5))
    return max(1, round(clock().pool_silence_s) - 3 * between), between


def _break_when_silent(connection: Any, _record: object) -> None:
    """Our side of `clock.pool_silence_s`; a Unix socket needs none."""
    transport = connection.driver_connection._transport  # asyncpg has no option for it
    found = transport.get_extra_info("socket")
    if found is None or found.family == socket.AF_UNIX:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _keep_alive()[0]),
        (socket.TCP_KEEPINTVL, _keep_alive()[1]),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, int(clock().pool_silence_s * 1000)),
    ):
        found.setsockopt(socket.IPPROTO_TCP, option, value)


class OldCode(ServiceError):
    """The database has contracted since this code: no waiting helps, only newer code."""


async def check_revision(connection: AsyncConnection) -> None:
    """Raise ServiceError unless this code may run on the database: it is at this code's revision, or at a newer one that says of itself
    (`compatibility`) that code as old as this still may. OldCode where it says otherwise."""
    found = await revision_of(connection)
    if found is None or found < REVISION:
        raise ServiceError(
            f"the database is at revision {found or 'none'}, this version of Penstock needs {REVISION}: run `alembic upgrade head`"
        )
    if found > REVISION:
        oldest = await _oldest_code(connection)
        if oldest is None or oldest > REVISION:
            raise OldCode(
                f"the database is at revision {found}, on which code older than {oldest or found} cannot run; this is {REVISION}: "
                "start the version of Penstock that the database was upgraded for"
            )


async def revision_of(connection: AsyncConnection) -> str | None:
    """The newest migration that was run; None: none yet. Four digits, so that they compare as text."""
    exists = await connection.scalar(text("select to_regclass('alembic_version')"))
    found: str | None = (
        await connection.scalar(text("select version_num from alembic_version")) if exists else None
    )
    return found


async def _oldest_code(connection: AsyncConnection) -> str | None:
    """The revision of the oldest code that may run on a database that is newer than this code."""
    exists = await connection.scalar(text("select to_regclass('compatibility')"))
    found: str | None = (
        await connection.scalar(text("select oldest_code from compatibility")) if exists else None
    )
    return found
