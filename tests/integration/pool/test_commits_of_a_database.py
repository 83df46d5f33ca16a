"""Commits outside of any run: the schema, and the login for people's statements. Each is whole or absent, and the next process completes it."""

import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import asyncpg
import pytest
from sqlalchemy import text

from orchestrator.cli.sql import query
from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.stack import migrate
from orchestrator.pool import reader_login as reader_login_module
from orchestrator.pool.address import address_of
from orchestrator.pool.engine import REVISION, open_engine, revision_of
from orchestrator.pool.reader_login import reader_login
from orchestrator.runtime import failpoints
from orchestrator.settings.config import Config
from tests.services import upgrade_to_head

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]

SIDES = ("before", "after")
LOGGED_IN = """
import sys, anyio
from orchestrator.pool import reader_login

reader_login.LOGIN = sys.argv[2]
anyio.run(reader_login.reader_login, sys.argv[1])
"""
MIGRATED = """
import sys
from orchestrator.deploy.stack import upgrade

upgrade(sys.argv[1])
"""


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(failpoints, "directory", tmp_path)
    return tmp_path


@pytest.fixture
async def login(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The login's name, which no other test uses."""
    name = f"penstock_sql_{secrets.token_hex(6)}"
    monkeypatch.setattr(reader_login_module, "LOGIN", name)
    yield name
    await scalar(database_url, f"DROP ROLE IF EXISTS {name}")


async def scalar(url: str, statement: str) -> object:
    owner = await asyncpg.connect(**address_of(url).arguments(timeout_s=30))
    try:
        return await owner.fetchval(statement)
    finally:
        await owner.close()


async def made(url: str, login: str) -> bool:
    return bool(await scalar(url, f"SELECT true FROM pg_roles WHERE rolname = '{login}'"))


async def serves(url: str, login: str) -> None:
    """The next request for the login gets it, and it is a reader."""
    found = await reader_login(url)
    assert urlsplit(found.url).username == login and not found.leaves
    assert await scalar(found.url, "SELECT pg_has_role(session_user, 'penstock_reader', 'MEMBER')")


async def killed(program: str, point: str, armed: Path, *arguments: str) -> None:
    """Run the program, which dies at `point`."""
    (armed / point).write_text("exit")
    done = await anyio.run_process(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PENSTOCK_FAILPOINTS": str(armed)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize("side", SIDES)
async def test_a_login_whose_making_fails_or_dies_is_there_wholly_or_not_and_the_next_has_it(
    database_url: str, armed: Path, login: str, side: str
) -> None:
    point = f"login.commit.{side}"
    (armed / point).write_text("raise")
    with pytest.raises(ConnectionResetError):
        await reader_login(database_url)
    assert await made(database_url, login) == (side == "after")
    await serves(database_url, login)
    await scalar(database_url, f"DROP ROLE {login}")
    await killed(LOGGED_IN, point, armed, database_url, login)
    assert await made(database_url, login) == (side == "after")
    await serves(database_url, login)


async def test_a_login_may_be_made_twice_and_late(database_url: str, armed: Path, login: str) -> None:
    (armed / "login.commit").write_text("duplicate")
    (armed / "login.commit.before").write_text("delay 0.05")
    (armed / "login.commit.after").write_text("delay 0.05")
    await serves(database_url, login)
    assert len((armed / failpoints.HITS).read_text().splitlines()) == 3
    await serves(database_url, login)


async def test_a_query_while_the_login_could_not_be_created_reports_what_guards_the_statement_instead(
    database_url: str, armed: Path, login: str
) -> None:
    (armed / "login.commit.before").write_text("raise")
    answer = await query(database_url, "SELECT current_user")
    assert answer.rows == [("penstock_reader",)]
    assert f"whether the login {login} exists could not be checked" in (answer.leaves or "")
    assert not (await query(database_url, "SELECT 1")).leaves


async def revision(url: str) -> str | None:
    async with open_engine(url, size=1) as engine, engine.connect() as connection:
        return await revision_of(connection)


@pytest.mark.parametrize("side", SIDES)
async def test_a_schema_whose_commit_fails_or_dies_is_there_wholly_or_not_and_the_next_start_has_it(
    empty_database_url: str, armed: Path, side: str
) -> None:
    url, point = empty_database_url, f"schema.commit.{side}"
    expected = REVISION if side == "after" else None
    await killed(MIGRATED, point, armed, url)
    assert await revision(url) == expected
    (armed / point).write_text("raise")
    config = Config.model_validate({"run": {"name": "up"}, "services": {"database_url": url}})
    with pytest.raises(ServiceError, match="start again"):
        await migrate(config, own=True)
    assert await revision(url) == expected
    await migrate(config, own=True)
    assert await revision(url) == REVISION


async def test_a_schema_may_be_committed_twice_and_late(empty_database_url: str, armed: Path) -> None:
    (armed / "schema.commit").write_text("duplicate")
    (armed / "schema.commit.before").write_text("delay 0.05")
    (armed / "schema.commit.after").write_text("delay 0.05")
    await anyio.to_thread.run_sync(upgrade_to_head, empty_database_url)
    assert len((armed / failpoints.HITS).read_text().splitlines()) == 3
    assert await revision(empty_database_url) == REVISION


async def test_two_concurrent_upgrades_of_the_schema_both_succeed(empty_database_url: str) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(migrated, empty_database_url)
    async with open_engine(empty_database_url) as engine, engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM alembic_version")) == 1


async def migrated(url: str) -> None:
    await anyio.run_process([sys.executable, "-c", MIGRATED, url])
