"""Acts of a login that only reads, beyond reading: each attempt is made as the login of `penstock sql`, with its own settings undone first."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import asyncpg
import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.cli.sql import query
from orchestrator.pool import reader_login as reader_login_module
from orchestrator.pool.address import address_of
from orchestrator.pool.engine import REVISION, Role, open_engine
from orchestrator.pool.reader_login import CONNECTIONS, keep_login, reader_login
from orchestrator.pool.reader_rights import end_long, readers_may, tighten
from orchestrator.pool.runs import ensure_run
from orchestrator.pool.server_leases import ServerRows
from orchestrator.pool.transact import transact
from orchestrator.roles.readers import end_long_readers
from orchestrator.settings.timeouts import Timeouts, use
from tests import builders
from tests.integration.pool.rig import a_row_in_every_table, context_of, small
from tests.integration.pool.test_migrations import NEXT, later_migrations
from tests.services import upgrade_to_head
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]

WRITES = [
    "CREATE TEMP TABLE mine (x int)",
    "CREATE TABLE mine (x int)",
    "SELECT 1 AS x INTO TEMP mine",
    "CREATE SCHEMA mine",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT lo_put(1, 0, 'x')",
    "SELECT pg_logical_emit_message(false, 'x', 'y')",
    "SELECT pg_advisory_lock(7317)",
    "SELECT pg_advisory_lock(1, 2)",
    "SELECT pg_advisory_xact_lock_shared(7316)",
    "SELECT pg_try_advisory_lock(hashtext('penstock.runs'))",
    "LOCK TABLE runs IN SHARE UPDATE EXCLUSIVE MODE",
    "LOCK TABLE rollout_servers IN ROW SHARE MODE",
    "LOCK TABLE alembic_version IN SHARE UPDATE EXCLUSIVE MODE",
    "LOCK TABLE reward_breakdown IN EXCLUSIVE MODE",
    "SELECT * FROM runs FOR UPDATE",
    "SELECT * FROM groups FOR KEY SHARE",
    "SELECT nextval(pg_get_serial_sequence('runs', 'run_id'))",
    "ALTER ROLE CURRENT_USER CONNECTION LIMIT -1",
    "ALTER ROLE CURRENT_USER SET temp_file_limit = -1",
    "SET temp_file_limit = -1",
    "SET log_min_messages = debug5",
    "ALTER ROLE penstock PASSWORD 'mine'",
]
NOT_ALLOWED = "42501"  # SQLSTATE insufficient_privilege


@pytest.fixture
async def login(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The URL of a reader's login that no other test uses."""
    name = f"penstock_sql_{secrets.token_hex(6)}"
    monkeypatch.setattr(reader_login_module, "LOGIN", name)
    found = await reader_login(database_url)
    assert urlsplit(found.url).username == name and found.leaves is None
    yield found.url
    await owned(database_url, f"DROP ROLE {name}")


async def connect(url: str, **more: str) -> asyncpg.Connection:
    return await asyncpg.connect(**{**address_of(url).arguments(timeout_s=60), **more})


async def owned(url: str, *statements: str) -> None:
    connection = await connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def unbound(url: str) -> asyncpg.Connection:
    """A session of the reader that has undone every setting that it can."""
    connection = await connect(url)
    for setting in (
        "default_transaction_read_only = off",
        "statement_timeout = 0",
        "lock_timeout = 0",
        "idle_in_transaction_session_timeout = 0",
        "idle_session_timeout = 0",
    ):
        await connection.execute(f"SET {setting}")
    return connection


async def test_a_reader_that_has_undone_its_settings_writes_nothing_and_holds_no_lock_that_the_product_waits_for(
    engine: AsyncEngine, login: str
) -> None:
    await a_row_in_every_table(engine)
    reader = await unbound(login)
    through = {}
    for statement in WRITES:
        try:
            async with reader.transaction():
                await reader.execute(statement)
            through[statement] = ""
        except asyncpg.PostgresError as error:
            if error.sqlstate != NOT_ALLOWED:
                through[statement] = str(error)
    await reader.close()
    assert through == {}


async def test_a_session_of_a_reader_begins_with_limits_and_there_are_few_of_them(
    database_url: str, login: str
) -> None:
    reader = await connect(login)
    for setting, expected in (
        ("statement_timeout", "5min"),
        ("idle_in_transaction_session_timeout", "1min"),
        ("lock_timeout", "10s"),
        ("temp_file_limit", "4GB"),
    ):
        assert await reader.fetchval(f"SHOW {setting}") == expected
    others = [await connect(login) for _ in range(CONNECTIONS - 1)]
    with pytest.raises(asyncpg.TooManyConnectionsError):
        await connect(login)
    for each in (reader, *others):
        await each.close()


@pytest.mark.parametrize("database", ["postgres", "template1"])
async def test_a_reader_does_not_enter_the_servers_own_databases(login: str, database: str) -> None:
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match=r"pg_hba\.conf rejects"):
        await connect(login, database=database)


async def test_a_password_and_settings_that_a_reader_changed_are_undone_at_the_next_start_of_a_run(
    database_url: str, login: str
) -> None:
    reader = await connect(login)
    name = reader_login_module.LOGIN
    await reader.execute(f"ALTER ROLE {name} PASSWORD 'mine'")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await connect(login)
    await (await connect(login, password="mine")).close()
    await keep_login(database_url)
    await (await connect(login)).close()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await connect(login, password="mine")
    await reader.execute(f"ALTER ROLE {name} SET statement_timeout = 0")
    await reader.execute(f"ALTER ROLE {name} SET search_path = mine")
    await reader.execute(
        f'ALTER ROLE {name} IN DATABASE "{address_of(database_url).database}" SET work_mem = 64'
    )
    await reader.close()
    await keep_login(database_url)
    reader = await connect(login)
    assert await reader.fetchval(
        "SELECT current_setting('statement_timeout') || current_setting('search_path')"
    ) == ('5min"$user", public')
    assert await reader.fetchval("SHOW work_mem") == "4MB"
    await reader.close()
    assert (await query(database_url, "SELECT session_user::text")).rows == [(name,)]


async def test_keeping_a_login_makes_none(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_login_module, "LOGIN", f"penstock_sql_{secrets.token_hex(6)}")
    await keep_login(database_url)
    connection = await connect(database_url)
    assert not await connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", reader_login_module.LOGIN
    )
    await connection.close()


async def test_the_start_of_a_run_takes_from_readers_what_they_need_not_have(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        assert await readers_may(connection) == [
            "make temporary tables",
            "hold advisory locks",
            "make large objects",
            "write to the write-ahead log",
        ]
    async with engine.begin() as connection:
        assert await tighten(connection) == []
    async with engine.begin() as connection:
        assert await readers_may(connection) == await tighten(connection) == []
        await connection.execute(text("SET LOCAL ROLE penstock_gateway"))
        await connection.execute(text("SELECT pg_advisory_xact_lock(1)"))  # as older gateways do


async def test_two_starts_at_once_take_it_once(engine: AsyncEngine, database_url: str, login: str) -> None:
    async def start() -> None:
        await transact(engine, tighten, at="run.create")

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(start)
            tasks.start_soon(reader_login, database_url)
    async with engine.begin() as connection:
        assert await readers_may(connection) == []


async def test_the_product_does_not_wait_for_what_a_reader_holds(
    engine: AsyncEngine, database_url: str, login: str
) -> None:
    run = await a_row_in_every_table(engine, "first")
    reader = await unbound(login)
    await reader.execute("BEGIN")
    for table in await reader.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
    ):
        await reader.execute(f'LOCK TABLE "{table["relname"]}" IN ACCESS SHARE MODE')
    with anyio.fail_after(60):
        config = small()
        await transact(engine, lambda c: ensure_run(c, "second", config.to_json()), at="run.create")
        async with open_engine(database_url, Role.GATEWAY) as gateway:
            assert await ServerRows(gateway, run.run_id, owner="g", ttl_s=30.0).claim(
                "http://127.0.0.1:9", steal=False
            )
        await anyio.to_thread.run_sync(upgrade_to_head, database_url)
        await builders.accepted(engine, run, ["c"])
        assert urlsplit((await reader_login(database_url)).url).username == reader_login_module.LOGIN
    assert await reader.fetchval("SELECT count(*) FROM runs") == 2, "its transaction goes on"
    await reader.close()


async def test_two_claims_of_one_server_by_two_runs_are_one_after_the_other(
    engine: AsyncEngine, database_url: str
) -> None:
    runs = [await a_row_in_every_table(engine, name) for name in ("one", "two")]
    found: list[int | None] = []
    async with open_engine(database_url, Role.GATEWAY) as gateway:

        async def claim(run_id: int) -> None:
            found.append(
                await ServerRows(gateway, run_id, owner="g", ttl_s=30.0).claim(
                    "http://127.0.0.1:9", steal=False
                )
            )

        async with anyio.create_task_group() as tasks:
            for run in runs:
                tasks.start_soon(claim, run.run_id)
    assert sorted(found, key=bool) == [None, 1]


async def test_a_transaction_of_a_reader_that_lasts_too_long_is_ended_and_no_others_is(
    engine: AsyncEngine, database_url: str, login: str
) -> None:
    reader, idle, own = await unbound(login), await unbound(login), await connect(database_url)
    try:
        for each in (reader, own):
            await each.execute("BEGIN; SELECT count(*) FROM runs")
        async with engine.begin() as connection:
            assert await end_long(connection, 3600.0) == 0
            assert await end_long(connection, 0.0) == 1
        with pytest.raises(
            (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
        ):
            await reader.fetchval("SELECT 1")
        assert (await idle.fetchval("SELECT 1"), await own.fetchval("SELECT 1")) == (1, 1)
    finally:
        for each in (reader, idle, own):
            await each.close()


async def test_the_orchestrator_ends_long_readers(engine: AsyncEngine, login: str) -> None:
    run = await builders.make_run(engine, small())
    reader = await unbound(login)
    await reader.execute("BEGIN; SELECT count(*) FROM runs")
    with use(Timeouts(pool_reader_s=0.1)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end_long_readers, context_of(engine, run))
            await eventually(reader.is_closed)
            tasks.cancel_scope.cancel()


WIDENS = f'''"""More. Revision: {NEXT}."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "{NEXT}", "{REVISION}"


def upgrade() -> None:
    op.add_column("runs", sa.Column("colour", sa.Text()))


def downgrade() -> None:
    op.drop_column("runs", "colour")
'''


async def test_a_migration_that_waits_for_a_reader_ends_its_session(
    database_url: str, login: str, tmp_path: Path
) -> None:
    reader = await unbound(login)
    await reader.execute("BEGIN; SELECT count(*) FROM runs")
    config = later_migrations(tmp_path / "migrations", database_url, **{NEXT: WIDENS})
    with anyio.fail_after(120):
        await anyio.to_thread.run_sync(command.upgrade, config, "head")
    await eventually(reader.is_closed)
