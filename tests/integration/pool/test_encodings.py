"""A database that cannot store every character is refused before it is used, and a text that it lacks is the content of its message."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio.to_thread
import asyncpg
import pytest
from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError

from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.embedded.configured import ask_postgres
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.pool.engine import open_engine
from orchestrator.pool.opened import opened
from orchestrator.pool.transact import of_content
from tests.services import upgrade_to_head

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]
REMEDY = "CREATE DATABASE penstock ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"


@asynccontextmanager
async def made(server: EmbeddedPostgres, statement: str) -> AsyncIterator[str]:
    """The URL of a database that `statement` makes."""
    name = f"test_{secrets.token_hex(6)}"
    connection = await asyncpg.connect(server.url)
    await connection.execute(statement.replace("penstock", name))
    yield urlsplit(server.url)._replace(path=f"/{name}").geturl()
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()


@pytest.fixture(params=["SQL_ASCII", "LATIN1"])
async def other(request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    """The URL of an empty database of another encoding."""
    async with made(postgres_server, REMEDY.replace("UTF8", request.param)) as url:
        yield url


async def test_migrations_processes_and_doctor_refuse_a_database_of_another_encoding(other: str) -> None:
    async def open_it() -> None:
        async with opened(other, name="test"):
            pass

    for use in (
        lambda: anyio.to_thread.run_sync(upgrade_to_head, other),
        open_it,
        lambda: ask_postgres(other),
    ):
        with pytest.raises(ServiceError, match=r"the encoding of the database test_\w+ is ") as refused:
            await use()
        assert REMEDY in str(refused.value) and "\n" not in str(refused.value)
    async with open_engine(other) as engine, engine.connect() as connection:
        assert await connection.scalar(text("SELECT to_regclass('alembic_version')")) is None


async def test_the_remedy_makes_a_database_that_is_taken(postgres_server: EmbeddedPostgres) -> None:
    async with made(postgres_server, REMEDY) as url:
        await anyio.to_thread.run_sync(upgrade_to_head, url)
        assert "takes every role" in await ask_postgres(url)


async def test_a_character_that_the_encoding_lacks_is_content(other: str) -> None:
    async with open_engine(other) as engine, engine.connect() as connection:
        with pytest.raises(DBAPIError) as refused:
            await connection.execute(select(bindparam("x", {"content": "漢字"}, type_=JSONB)))
    assert of_content(refused.value)


async def test_a_statement_that_was_prepared_before_a_migration_is_not_content(database_url: str) -> None:
    async with open_engine(database_url) as engine, engine.connect() as reader, engine.connect() as owner:
        await owner.execute(text("CREATE TABLE grows (x int)"))
        await owner.commit()
        await reader.execute(text("SELECT * FROM grows"))
        await reader.commit()
        await owner.execute(text("ALTER TABLE grows ADD COLUMN y int"))
        await owner.commit()
        with pytest.raises(DBAPIError, match="cached statement plan is invalid") as refused:
            await reader.execute(text("SELECT * FROM grows"))
    assert not of_content(refused.value)
