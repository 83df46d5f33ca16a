"""The fixtures every other test of the services stands on."""

import asyncpg
import pytest

from orchestrator.embedded.nats import EmbeddedNats, check_server

pytestmark = [pytest.mark.anyio, pytest.mark.services]


@pytest.mark.parametrize("attempt", [1, 2])
async def test_every_test_gets_a_migrated_database_of_its_own(database_url: str, attempt: int) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        assert await connection.fetchval("select count(*) from alembic_version") == 1
        await connection.execute("create table left_by_a_test (attempt integer)")
    finally:
        await connection.close()


async def test_an_empty_database_has_no_tables(empty_database_url: str) -> None:
    connection = await asyncpg.connect(empty_database_url)
    try:
        assert await connection.fetchval("select count(*) from pg_tables where schemaname = 'public'") == 0
    finally:
        await connection.close()


async def test_the_shared_nats_server_is_new_enough(nats_server: EmbeddedNats) -> None:
    assert await check_server(nats_server.url) >= (2, 10)
