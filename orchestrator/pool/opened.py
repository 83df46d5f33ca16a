"""The data pool, opened for use: by code that its schema allows. The rest of the product opens it only here
(tests/architecture/test_opened.py lists the exceptions)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool.engine import Role, check_revision, open_engine
from orchestrator.pool.runs import StoredRun, get_run
from orchestrator.settings.config import Config


@asynccontextmanager
async def opened(
    url: str, role: Role = Role.OWNER, *, name: str, size: int = 1, patience_s: float = 0.0
) -> AsyncIterator[AsyncEngine]:
    """An engine on a database that this code may use. Raises the errors of `open_engine` and of `check_revision`: ServiceError, OldCode,
    OldDatabase. `patience_s`: seconds to wait for the server."""
    async with open_engine(url, role, size=size, name=name, patience_s=patience_s) as engine:
        async with engine.connect() as connection:
            await check_revision(connection)
        yield engine


@asynccontextmanager
async def opened_run(
    config: Config, role: Role = Role.OWNER, *, name: str, size: int = 1
) -> AsyncIterator[tuple[AsyncEngine, StoredRun]]:
    """An engine and the configured run. Raises the errors of `opened`, and ConfigurationError if the database has no run of that name."""
    async with opened(config.services.database_url, role, size=size, name=name) as engine:
        async with engine.connect() as connection:
            run = await get_run(connection, config.run.name)
        yield engine, run
