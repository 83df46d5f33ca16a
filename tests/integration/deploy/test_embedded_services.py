"""The fixtures that every other test of the services relies on."""

import subprocess
import tempfile
from pathlib import Path

import asyncpg
import pytest

from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.nats import EmbeddedNats, check_server
from tests.services import PREFIX, remove_leftovers

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


def test_the_directories_of_dead_sessions_are_removed_and_no_others(services_directory: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "1000"]) as session:
        owner = ProcessId.of(session.pid)
        session.kill()
    abandoned = Path(tempfile.mkdtemp(prefix=PREFIX))
    unowned = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        owner.write(abandoned / "owner.json")
        remove_leftovers()
        assert not abandoned.exists()
        assert unowned.exists(), "its session may be about to write its name"
        assert services_directory.exists()
    finally:
        unowned.rmdir()
