"""Connections to the data pool: asyncpg under SQLAlchemy, one engine per process, a role per kind of process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path

import anyio
import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from orchestrator.contracts.errors import ServiceError

CLOSE_S = 5.0
MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
REVISION = "0003"
"""The newest migration. Written here because every process checks it, and to ask Alembic takes each as long as all else that it imports."""


class Role(StrEnum):
    """Database roles made by the migrations. A process connects with its login and then takes one of these."""

    OWNER = ""  # the login itself: orchestrator and migrations
    GATEWAY = "penstock_gateway"
    RUNNER = "penstock_runner"
    TRAINER = "penstock_trainer"
    READER = "penstock_reader"


def sqlalchemy_url(url: str) -> str:
    """`postgresql://…` (or `postgres://…`) with the asyncpg driver named."""
    for prefix in ("postgresql+asyncpg://", "postgresql://", "postgres://"):
        if url.startswith(prefix):
            return "postgresql+asyncpg://" + url.removeprefix(prefix)
    raise ServiceError(
        f"{url.split('@')[-1]!r} is not a PostgreSQL URL: use postgresql://user:password@host:port/database"
    )


@asynccontextmanager
async def open_engine(
    url: str, role: Role = Role.OWNER, *, size: int = 8, name: str = "penstock"
) -> AsyncIterator[AsyncEngine]:
    """An engine whose sessions have taken `role`. Raises ServiceError when the server cannot be reached."""
    settings = {"application_name": name}
    if role is not Role.OWNER:
        settings["role"] = role.value
    if role is Role.READER:
        settings["default_transaction_read_only"] = "on"
    engine = create_async_engine(
        sqlalchemy_url(url),
        pool_size=size,
        max_overflow=size,
        pool_pre_ping=True,
        connect_args={"server_settings": settings, "timeout": 10},
    )
    try:
        async with engine.connect() as connection:
            await connection.execute(text("select 1"))
    except (OSError, asyncpg.PostgresError, DBAPIError) as error:
        await engine.dispose()
        raise ServiceError(
            f"PostgreSQL at {url.split('@')[-1]} cannot be used ({error.__class__.__name__}: {str(error).splitlines()[0]}); "
            "start it (`penstock up` does, where it is embedded) or check DATABASE_URL"
        ) from error
    try:
        yield engine
    finally:
        # Also when cancelled: a connection that is left half closed stays open at the server.
        with anyio.move_on_after(CLOSE_S, shield=True):
            await engine.dispose()


async def check_revision(connection: AsyncConnection) -> None:
    """Raise ServiceError unless the database is at this code's revision."""
    exists = await connection.scalar(text("select to_regclass('alembic_version')"))
    found = await connection.scalar(text("select version_num from alembic_version")) if exists else None
    if found != REVISION:
        raise ServiceError(
            f"the database is at revision {found or 'none'}, this version of Penstock needs {REVISION}: run `alembic upgrade head`"
        )
