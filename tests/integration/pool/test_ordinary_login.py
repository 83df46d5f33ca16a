"""A database of one's own with an ordinary login, neither superuser nor CREATEROLE: from `alembic upgrade head` to a trained batch.

On the embedded PostgreSQL; `./ops/test --tier postgres` does the same on the distribution's PostgreSQL 15.
"""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import select

from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.embedded import postgres_cluster
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.postgres_binaries import find_binaries
from orchestrator.pool.address import address_of
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.tables import policy_versions
from tests.builders import ready_groups
from tests.integration.trainer.rig import Pool, model, scored_by
from trainer.loop import train_batches

__all__ = ["model"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]
REPOSITORY = Path(__file__).resolve().parents[3]
MAJORS = (15, 18) if os.environ.get("PENSTOCK_TIER") == "postgres" else (18,)
ROLES = [role for role in Role if role is not Role.OWNER]


class Server:
    """A PostgreSQL in which Penstock has never made anything."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def run(self, *statements: str, database: str = "") -> None:
        """Run statements as the superuser."""
        connection = await asyncpg.connect(self.url, **({"database": database} if database else {}))
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def login(self, name: str, *, options: str = "", owns: bool = True) -> str:
        """The URL of a new login with a database of its own."""
        await self.run(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' {options}", f"CREATE DATABASE {name}_db")
        if owns:
            await self.run(f"ALTER DATABASE {name}_db OWNER TO {name}")
        hosts = address_of(self.url).hosts
        return f"postgresql://{name}:pw@{hosts[0][0]}:{hosts[0][1]}/{name}_db?sslmode=disable"


@pytest.fixture(params=MAJORS)
async def server(
    request: pytest.FixtureRequest, services_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Server]:
    major = request.param
    monkeypatch.setattr(postgres_cluster, "find_binaries", lambda **_: find_binaries(major=major))
    directory = services_directory / f"ordinary-{major}-{request.node.name.partition('[')[0][-40:]}"
    async with EmbeddedPostgres(directory, durable=False) as running:
        connection = await asyncpg.connect(running.url)
        assert connection.get_server_version().major == major
        await connection.close()
        yield Server(running.url)
    postgres_cluster.discard_cluster(directory)


def upgrade(url: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "alembic", "-c", str(REPOSITORY / "alembic.ini"), "upgrade", "head"]
    environment = {**os.environ, "DATABASE_URL": url}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)


def refused(url: str) -> str:
    """The sentence that ends `alembic upgrade head`."""
    done = upgrade(url)
    output = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in output and output.count("FAILED: ") == 1, output
    return output


def statements_of(sentence: str) -> list[str]:
    """The SQL that a sentence instructs its reader to run."""
    found = [part for part in re.findall(r"`([^`]+)`", sentence) if re.match("CREATE|GRANT", part)]
    assert found, sentence
    statements: str = found[0]
    return statements.split("; ")


async def takes_every_role(url: str) -> None:
    for role in ROLES:
        async with open_engine(url, role, size=1):
            pass


async def test_an_ordinary_login_goes_from_the_migrations_to_a_trained_batch(
    server: Server, tmp_path: Path, model: Path
) -> None:
    url = await server.login("plain")
    sentence = refused(url)
    assert "the login plain may not make the roles" in sentence and "pw" not in sentence
    await server.run(*statements_of(sentence))
    done = upgrade(url)
    assert done.returncode == 0 and "penstock:" not in done.stderr, done.stderr
    assert upgrade(url).returncode == 0
    await takes_every_role(url)
    async with open_engine(url) as engine, open_engine(url, Role.TRAINER, size=2) as trainers:
        pool = Pool(url=url, engine=engine, trainers=trainers, policies=tmp_path / "policies", model=model)
        run = await pool.run()
        await ready_groups(engine, run, ["a", "b"], scored_by(model))
        await train_batches(await pool.trainer(run), 2)
        assert [row.version for row in await pool.rows(select(policy_versions))] == [0, 1]


async def test_a_login_that_may_create_roles_needs_no_administrator(server: Server) -> None:
    url = await server.login("maker", options="CREATEROLE")
    done = upgrade(url)
    assert done.returncode == 0 and "penstock:" not in done.stderr, done.stderr
    await takes_every_role(url)


async def test_a_login_that_may_not_take_the_roles_is_given_the_grant_by_the_migration_and_by_each_process(
    server: Server,
) -> None:
    assert upgrade(await server.login("maker", options="CREATEROLE")).returncode == 0
    url = await server.login("second")
    done = upgrade(url)  # the roles exist already: others may take them
    assert done.returncode == 0, done.stderr
    assert "penstock: the login second may not take the roles penstock_reader" in done.stderr
    for role in ROLES:
        with pytest.raises(ServiceError) as failed:
            async with open_engine(url, role, size=1):
                pass
        assert f'GRANT {role.value} TO "second"' in str(failed.value) and "\n" not in str(failed.value)
    await server.run(*statements_of(done.stderr))
    await takes_every_role(url)


async def test_a_login_that_may_make_no_tables_is_given_the_grant(server: Server) -> None:
    url = await server.login("guest", options="CREATEROLE", owns=False)
    sentence = refused(url)
    assert "schema public" in sentence
    await server.run(*statements_of(sentence), database="guest_db")
    assert upgrade(url).returncode == 0
    await takes_every_role(url)
