"""Database roles as a cluster gives them out: a login per kind of process, member of one role, with no way to another.

`test_migrations.py` lists the tables that each role may write; here the statements themselves are made.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.reader_login import LOGIN, reader_login
from tests.integration.pool.rig import a_row_in_every_table

pytestmark = [pytest.mark.anyio, pytest.mark.services]

NOT_ALLOWED = {"42501", "25006"}  # insufficient_privilege; read-only transaction
OF_THE_TRAINER = [
    "UPDATE batches SET state = 'committed'",
    "INSERT INTO batches (run_id, batch_no, size) VALUES (1, 99, 1)",
    "UPDATE batch_items SET pos = 7",
    "UPDATE groups SET state = 'ready'",
    "UPDATE queue SET floor_seq = 99",
    "INSERT INTO policy_versions (run_id, version, path, manifest_sha) VALUES (1, 99, '/x', 'y')",
    "INSERT INTO outbox (run_id, subject, schema, body) VALUES (1, 'policy.x', 'PolicyPublished/1', '{}')",
]
FOR_NO_ROLE = [
    "INSERT INTO rewards SELECT * FROM rewards",
    "UPDATE rewards SET performance = 1, total = 1",
    "DELETE FROM rewards",
    "INSERT INTO verdicts SELECT * FROM verdicts",
    "UPDATE verdicts SET reward = 1",
    "INSERT INTO steps SELECT * FROM steps",
    "UPDATE steps SET logprobs = logprobs",
    "UPDATE steps_1 SET logprobs = logprobs",
    "DELETE FROM steps_1",
    "TRUNCATE steps_1",
    "DELETE FROM step_marks",
    "DELETE FROM transitions",
    "UPDATE transitions SET reason = 'other'",
    "UPDATE runs SET config = '{}'",
    "UPDATE tasks SET body = '{}'",
    "DELETE FROM groups",
    "DELETE FROM dead_letters",
    "UPDATE alembic_version SET version_num = '0000'",
    "DROP TABLE rewards",
    "DROP TRIGGER rewards_immutable ON rewards",
    "ALTER TABLE rewards DISABLE TRIGGER ALL",
    "CREATE TABLE mine (x int)",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "SET session_replication_role = replica",
    "SELECT pg_reload_conf()",
    "SELECT pg_read_file('PG_VERSION')",
    "SELECT pg_ls_dir('.')",
    "COPY counters TO PROGRAM 'cat'",
    "COPY counters TO '/copied'",
    "SELECT lo_import('/etc/passwd')",
    "CREATE ROLE mine SUPERUSER",
    "GRANT penstock_trainer TO CURRENT_USER",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'penstock'",
    "SELECT open_partition(99)",
]
MAY = {
    Role.GATEWAY: ["UPDATE sessions SET state = 'sealed'", "UPDATE rollout_servers SET detail = 'x'"],
    Role.RUNNER: ["UPDATE rollouts SET lease_until = NULL", "UPDATE attempts SET log = 'x'"],
    Role.TRAINER: ["UPDATE batches SET state = state", "UPDATE groups SET state = state"],
    Role.READER: ["SELECT * FROM reward_breakdown"],
}
roles = pytest.mark.parametrize("role", MAY)


@asynccontextmanager
async def logged_in(engine: AsyncEngine, database_url: str, role: Role) -> AsyncIterator[AsyncEngine]:
    """An engine of a login of its own that is a member of `role` and of nothing else."""
    name, password = f"login_{secrets.token_hex(6)}", secrets.token_hex(16)
    async with engine.begin() as owner:
        await owner.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD '{password}' IN ROLE {role.value}"))
    parts = urlsplit(database_url)
    url = urlunsplit(parts._replace(netloc=f"{name}:{password}@{parts.netloc.rpartition('@')[2]}"))
    try:
        async with open_engine(url, role, size=1) as own:
            yield own
    finally:
        async with engine.begin() as owner:
            await owner.execute(text(f"DROP ROLE {name}"))


async def refusal(engine: AsyncEngine, *statements: str) -> str:
    """The SQLSTATE of the last of these statements, in one session; empty if it was let through."""
    try:
        async with engine.begin() as connection:
            for statement in statements:
                await connection.execute(text(statement))
            await connection.rollback()
    except DBAPIError as error:
        return str(getattr(error.orig, "sqlstate", "?"))
    return ""


@roles
async def test_a_login_of_one_role_cannot_touch_what_is_not_its_own(
    engine: AsyncEngine, database_url: str, role: Role
) -> None:
    run = await a_row_in_every_table(engine)
    foreign = [s.replace("steps_1", f"steps_{run.run_id}") for s in FOR_NO_ROLE]
    foreign += OF_THE_TRAINER if role is not Role.TRAINER else []
    foreign += [
        statement
        for other, own in MAY.items()
        if other not in (role, Role.TRAINER, Role.READER)
        for statement in own
    ]
    async with logged_in(engine, database_url, role) as own:
        through = {s: state for s in foreign if (state := await refusal(own, s)) not in NOT_ALLOWED}
        assert through == {}
        # Resetting the role gains nothing: the login itself has no rights.
        for way_out in ("RESET ROLE", "SET ROLE NONE", "SET SESSION AUTHORIZATION DEFAULT"):
            assert await refusal(own, way_out, "UPDATE rewards SET performance = 1") in NOT_ALLOWED
        for other in (*(r.value for r in MAY if r is not role), "penstock", "pg_execute_server_program"):
            assert await refusal(own, f"SET ROLE {other}") == "42501"


@roles
async def test_a_login_of_one_role_can_do_what_its_process_needs(
    engine: AsyncEngine, database_url: str, role: Role
) -> None:
    await a_row_in_every_table(engine)
    async with logged_in(engine, database_url, role) as own:
        assert {s: state for s in MAY[role] if (state := await refusal(own, s))} == {}
        async with own.connect() as connection:
            assert await connection.scalar(text("SELECT current_user")) == role.value
            assert await connection.scalar(text("SELECT count(*) FROM tasks"))


async def test_the_login_that_people_ask_as_can_only_read(engine: AsyncEngine, database_url: str) -> None:
    run = await a_row_in_every_table(engine)
    login = await reader_login(database_url)
    assert urlsplit(login.url).username == LOGIN and login.leaves is None
    mine = [statement for role, own in MAY.items() if role is not Role.READER for statement in own]
    foreign = [s.replace("steps_1", f"steps_{run.run_id}") for s in (*FOR_NO_ROLE, *OF_THE_TRAINER, *mine)]
    async with open_engine(login.url, Role.READER, size=1) as own:
        assert {s: state for s in foreign if (state := await refusal(own, s)) not in NOT_ALLOWED} == {}
        for way_out in ("RESET ROLE", "SET ROLE NONE", "SET SESSION AUTHORIZATION DEFAULT"):
            assert await refusal(own, way_out, "UPDATE rewards SET performance = 1") in NOT_ALLOWED
        for other in (
            *(r.value for r in MAY if r is not Role.READER),
            "penstock",
            "pg_execute_server_program",
        ):
            assert await refusal(own, f"SET ROLE {other}") == "42501"
        assert {s: state for s in MAY[Role.READER] if (state := await refusal(own, s))} == {}


async def test_every_statement_of_the_list_is_one_that_its_owner_may_make(engine: AsyncEngine) -> None:
    # A statement that is refused for another reason (a misspelt name) would prove nothing.
    run = await a_row_in_every_table(engine)
    owners = {s.replace("steps_1", f"steps_{run.run_id}") for s in (*FOR_NO_ROLE, *OF_THE_TRAINER)}
    owners -= {
        "SELECT pg_reload_conf()",
        "COPY counters TO PROGRAM 'cat'",
        "COPY counters TO '/copied'",
    }
    owners -= {s for s in owners if s.startswith(("SELECT pg_terminate", "SELECT lo_import", "SELECT pg_"))}
    codes = {s: await refusal(engine, s) for s in sorted(owners)}
    wrong = {s: state for s, state in codes.items() if state.startswith("42") and state != "42501"}
    assert wrong == {}
