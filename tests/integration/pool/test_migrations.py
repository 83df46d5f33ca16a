"""The migrations produce the schema that the code declares, run both ways over full tables, and guard the data that must never change."""

import os
import re
import secrets
import shutil
import sys
from collections.abc import AsyncIterator
from functools import partial
from io import StringIO
from pathlib import Path

import anyio
import anyio.to_thread
import asyncpg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.errors import ServiceError
from orchestrator.contracts.states import RolloutState
from orchestrator.pool import batches, leases, transitions
from orchestrator.pool import engine as engine_module
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.engine import (
    FIRST,
    MIGRATIONS,
    OLDEST_CODE,
    REVISION,
    OldCode,
    OldDatabase,
    Role,
    bare_engine,
    open_engine,
)
from orchestrator.pool.settled import MessageKey, MessageKind, settled
from orchestrator.pool.tables import metadata, rollout_servers, sessions
from orchestrator.scheduling.queue_policies import queue_policy
from tests import builders
from tests.integration.pool.rig import a_row_in_every_table, rollouts_of, small
from tests.services import REPOSITORY, alembic_config, upgrade_to_head

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]

IMMUTABLE = [
    "steps",
    "step_marks",
    "step_routes",
    "trained_steps",
    "prompts",
    "messages",
    "verdicts",
    "rewards",
    "transitions",
    "actions",
]

# Everything that Postgres knows about the tables of a database, as text, except partitions.
CATALOG = """
WITH t AS (SELECT c.oid, c.relname, c.reloptions, c.relkind FROM pg_class c
            WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
              AND c.relname <> 'alembic_version')
SELECT relname || ' ' || coalesce(reloptions::text, '') || relkind::text || coalesce(pg_get_partkeydef(oid), '')
       || obj_description(oid, 'pg_class') FROM t
UNION ALL
SELECT concat_ws(' ', relname, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
                 pg_get_expr(adbin, adrelid), col_description(t.oid, attnum))
  FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND attnum > 0 AND NOT attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = t.oid AND d.adnum = attnum
UNION ALL
SELECT concat_ws(' ', relname, conname, pg_get_constraintdef(k.oid)) FROM t JOIN pg_constraint k ON k.conrelid = t.oid
UNION ALL
SELECT pg_get_indexdef(indexrelid) FROM t JOIN pg_index ON indrelid = t.oid
"""


# Objects that no table declares: views, functions, triggers, permissions, the storage of columns.
BESIDES = """
WITH c AS (SELECT * FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition)
SELECT concat_ws(' ', relname, relacl::text, CASE WHEN relkind = 'v' THEN pg_get_viewdef(oid) || obj_description(oid, 'pg_class') END) FROM c
UNION ALL
SELECT concat_ws(' ', relname, attname, attstorage, CASE WHEN relkind = 'v' THEN col_description(c.oid, attnum) END)
  FROM c JOIN pg_attribute a ON a.attrelid = c.oid AND attnum > 0 AND NOT attisdropped
UNION ALL
SELECT concat_ws(' ', pg_get_functiondef(oid), proacl::text, obj_description(oid, 'pg_proc'))
  FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT pg_get_triggerdef(t.oid) FROM c JOIN pg_trigger t ON t.tgrelid = c.oid AND NOT tgisinternal
"""


async def catalog(url: str, query: str = CATALOG) -> set[str]:
    owner = bare_engine(url)
    try:
        async with owner.connect() as connection:
            return set((await connection.scalars(text(query))).all())
    finally:
        await owner.dispose()


async def everything(url: str) -> set[str]:
    return await catalog(url) | await catalog(url, BESIDES)


def _differences(connection: Connection) -> list[object]:
    options = {
        "include_name": lambda name, kind, parents: not (kind == "table" and name.startswith("steps_"))
    }
    return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)  # type: ignore[no-any-return]


async def test_the_migrated_schema_is_the_declared_one(database_url: str, empty_database_url: str) -> None:
    async with open_engine(database_url) as migrated, migrated.connect() as connection:
        assert await connection.run_sync(_differences) == []
    declared = bare_engine(empty_database_url)
    async with declared.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await declared.dispose()
    assert await catalog(database_url) == await catalog(empty_database_url)


async def test_it_goes_down_over_full_tables_and_up_again(empty_database_url: str) -> None:
    await anyio.to_thread.run_sync(upgrade_to_head, empty_database_url)
    before = await everything(empty_database_url)
    async with open_engine(empty_database_url) as engine:
        await a_row_in_every_table(engine)
    config = alembic_config(empty_database_url)
    await anyio.to_thread.run_sync(command.downgrade, config, "base")
    async with open_engine(empty_database_url) as engine, engine.connect() as connection:
        left = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname !~ '^alembic'"
        assert (await connection.scalars(text(left))).all() == []
        functions = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        assert (await connection.scalars(text(functions))).all() == []
    await anyio.to_thread.run_sync(command.upgrade, config, "head")
    assert await everything(empty_database_url) == before
    async with open_engine(empty_database_url) as engine:
        await a_row_in_every_table(engine)


async def test_the_way_down_to_the_first_migration_restores_its_views(empty_database_url: str) -> None:
    config = alembic_config(empty_database_url)
    await anyio.to_thread.run_sync(command.upgrade, config, FIRST)
    before = await catalog(empty_database_url, BESIDES)
    await anyio.to_thread.run_sync(command.upgrade, config, "head")
    assert await catalog(empty_database_url, BESIDES) != before
    await anyio.to_thread.run_sync(command.downgrade, config, FIRST)
    assert await catalog(empty_database_url, BESIDES) == before


async def test_code_runs_on_a_newer_database_that_has_only_grown_since_and_on_no_other(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine(database_url) as owner:

        async def looked() -> None:
            async with owner.connect() as connection:
                await engine_module.check_revision(connection)

        await looked()
        monkeypatch.setattr(engine_module, "REVISION", "9999")
        with pytest.raises(ServiceError, match="needs 9999: run `alembic upgrade head`"):
            await looked()
        async with owner.begin() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = '0112'"))
            await connection.execute(text("UPDATE compatibility SET oldest_code = '0109'"))
        monkeypatch.setattr(engine_module, "REVISION", "0109")
        await looked()
        async with owner.begin() as connection:
            await connection.execute(text("UPDATE compatibility SET oldest_code = '0110'"))
        with pytest.raises(OldCode, match="on which code older than 0110 cannot run; this is 0109: start"):
            await looked()
        async with owner.begin() as connection:
            await connection.execute(text("DROP TABLE compatibility"))
        with pytest.raises(OldCode, match="on which code older than 0112 cannot run; this is 0109"):
            await looked()


NEXT, AFTER_NEXT = (f"{int(REVISION) + n:04}" for n in (1, 2))
EXPANSION = f'''"""A column and a view more. Revision: {NEXT}."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "{NEXT}", "{REVISION}"


def upgrade() -> None:
    op.add_column("queue", sa.Column("weights", sa.Text(), comment="instead of shares"))
    op.execute("CREATE VIEW weights AS SELECT run_id, weights FROM queue")


def downgrade() -> None:
    op.execute("DROP VIEW weights")
    op.drop_column("queue", "weights")
'''
CONTRACTION = '''"""One less. Revision: {revision}."""

from alembic import op

revision, down_revision, oldest_code = "{revision}", "{before}", "{oldest}"


def upgrade() -> None:
    op.execute("DROP VIEW window_state")


def downgrade() -> None:
    op.execute("CREATE VIEW window_state AS SELECT 1 AS one")
'''


def later_migrations(place: Path, url: str, **written: str) -> AlembicConfig:
    """The migrations at `place`, with more of them: {revision: source}."""
    if not place.exists():
        shutil.copytree(MIGRATIONS, place, ignore=shutil.ignore_patterns("__pycache__"))
    for revision, source in written.items():
        (place / "versions" / f"{revision}.py").write_text(source)
    config = alembic_config(url)
    config.set_main_option("script_location", str(place))
    return config


def contracting(place: Path, url: str) -> AlembicConfig:
    """The migrations with one more that contracts: code from before it may not run any more."""
    written = CONTRACTION.format(revision=NEXT, before=REVISION, oldest=NEXT)
    return later_migrations(place, url, **{NEXT: written})


async def test_old_code_runs_on_what_has_expanded_and_is_refused_by_what_has_contracted_until_that_is_undone(
    empty_database_url: str, tmp_path: Path
) -> None:
    """This code plays the old code, over full tables, to two later migrations."""
    await anyio.to_thread.run_sync(upgrade_to_head, empty_database_url)
    last = CONTRACTION.format(revision=AFTER_NEXT, before=NEXT, oldest=NEXT)
    config = later_migrations(
        tmp_path / "migrations", empty_database_url, **{NEXT: EXPANSION, AFTER_NEXT: last}
    )

    async def state() -> tuple[str | None, str]:
        async with open_engine(empty_database_url) as owner, owner.connect() as connection:
            oldest = await connection.scalar(text("SELECT oldest_code FROM compatibility"))
            return await engine_module.revision_of(connection), str(oldest)

    async def works() -> None:
        async with open_engine(empty_database_url) as owner:
            async with owner.connect() as connection:
                await engine_module.check_revision(connection)
            await a_row_in_every_table(owner, f"r{secrets.token_hex(4)}")

    assert await state() == (REVISION, OLDEST_CODE)
    await works()
    await anyio.to_thread.run_sync(command.upgrade, config, NEXT)
    assert await state() == (NEXT, OLDEST_CODE)
    await works()
    await anyio.to_thread.run_sync(command.upgrade, config, "head")
    assert await state() == (AFTER_NEXT, NEXT)
    with pytest.raises(OldCode, match=f"code older than {NEXT} cannot run; this is {REVISION}"):
        await works()
    await anyio.to_thread.run_sync(command.downgrade, config, "-1")
    assert await state() == (NEXT, OLDEST_CODE)
    await works()
    await anyio.to_thread.run_sync(command.downgrade, config, "-1")
    assert await state() == (REVISION, OLDEST_CODE)
    await works()


COMMENTS_NOTHING = f'''"""Comments go astray. Revision: {NEXT}."""

from alembic import op

revision, down_revision = "{NEXT}", "{REVISION}"


def upgrade() -> None:
    op.execute("COMMENT ON TABLE runs IS NULL")
    op.execute("COMMENT ON COLUMN runs.name IS 'its colour'")


def downgrade() -> None:
    pass
'''


async def test_after_every_migration_tables_and_columns_say_what_the_code_declares(
    empty_database_url: str, tmp_path: Path
) -> None:
    await anyio.to_thread.run_sync(upgrade_to_head, empty_database_url)
    before = await catalog(empty_database_url)
    config = later_migrations(tmp_path / "migrations", empty_database_url, **{NEXT: COMMENTS_NOTHING})
    await anyio.to_thread.run_sync(command.upgrade, config, "head")
    assert await catalog(empty_database_url) == before


async def test_the_sql_that_alembic_prints_makes_the_same_database(
    empty_database_url: str, database_url: str
) -> None:
    config = alembic_config(empty_database_url)
    config.output_buffer = StringIO()
    await anyio.to_thread.run_sync(partial(command.upgrade, config, "head", sql=True))
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(config.output_buffer.getvalue())  # many statements: the simple protocol
    await connection.close()
    assert await everything(empty_database_url) == await everything(database_url)


@pytest.mark.parametrize("revision", ["0029", "0100", "0107"])
async def test_a_database_at_a_removed_revision_is_refused_in_one_sentence(
    database_url: str, revision: str
) -> None:
    async with open_engine(database_url) as owner:
        async with owner.begin() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})
        async with owner.connect() as connection:
            with pytest.raises(OldDatabase) as refused:
                await engine_module.check_revision(connection)
    sentence = str(refused.value)
    assert sentence.startswith(
        f"the database is at revision {revision}, and this version of Penstock migrates from {FIRST} on"
    )
    assert f"upgrade it to {FIRST} with the release before this one, or use a new database" in sentence
    with pytest.raises(OldDatabase, match=re.escape(sentence)):  # as `penstock up` calls it
        await anyio.to_thread.run_sync(upgrade_to_head, database_url)
    done = await anyio.run_process(
        [sys.executable, "-m", "alembic", "upgrade", "head"],
        env={**os.environ, "DATABASE_URL": database_url},
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode != 0 and done.stdout.decode().count("\n") <= 1
    assert sentence in done.stdout.decode() + done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    async with open_engine(database_url) as owner, owner.connect() as connection:
        assert await engine_module.revision_of(connection) == revision


async def test_every_run_has_a_partition_of_steps_that_can_be_detached_and_dropped(
    engine: AsyncEngine,
) -> None:
    first, second = await a_row_in_every_table(engine, "one"), await a_row_in_every_table(engine, "two")
    async with engine.begin() as connection:
        for run in (first, second):
            found = await connection.scalar(text(f"SELECT count(*) FROM steps_{run.run_id}"))
            assert found == await connection.scalar(
                text("SELECT count(*) FROM steps WHERE run_id = :r"), {"r": run.run_id}
            )
        stored = "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:t AS regclass) AND attstorage = 'e'"
        raw = await connection.scalars(text(stored), {"t": f"steps_{first.run_id}"})
        assert set(raw) == {"delta", "action", "logprobs"}
        await connection.execute(text(f"ALTER TABLE steps DETACH PARTITION steps_{first.run_id}"))
        await connection.execute(text(f"DROP TABLE steps_{first.run_id}"))
        kept = await connection.scalars(text("SELECT DISTINCT run_id FROM steps"))
        assert kept.all() == [second.run_id]


async def refused(engine: AsyncEngine, statement: str, state: str) -> None:
    with pytest.raises(DBAPIError) as caught:
        async with engine.begin() as connection:
            await connection.execute(text(statement))
    assert getattr(caught.value.orig, "sqlstate", None) == state, f"{statement}: {caught.value.orig}"


async def test_acknowledged_rows_cannot_be_changed_deleted_or_truncated(engine: AsyncEngine) -> None:
    run = await a_row_in_every_table(engine)
    for table in [*IMMUTABLE, f"steps_{run.run_id}"]:
        for statement in (
            f"UPDATE {table} SET run_id = run_id",
            f"DELETE FROM {table}",
            f"TRUNCATE {table} CASCADE",
        ):
            await refused(engine, statement, "23001")


async def test_every_table_view_and_function_says_what_it_is(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        silent = await connection.scalars(
            text(
                "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v') "
                "AND relname <> 'alembic_version' AND obj_description(oid, 'pg_class') IS NULL UNION ALL "
                "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace "
                "AND obj_description(oid, 'pg_proc') IS NULL"
            )
        )
        assert silent.all() == []


async def test_every_column_of_every_table_and_view_says_what_it_is(engine: AsyncEngine) -> None:
    silent = """SELECT relname || '.' || attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND attnum > 0 AND NOT attisdropped
                 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v') AND relname <> 'alembic_version'
                   AND col_description(c.oid, attnum) IS NULL"""
    await a_row_in_every_table(engine)  # the partitions of a new run too
    async with engine.connect() as connection:
        assert (await connection.scalars(text(silent))).all() == []


WRITES = {
    Role.READER: {},
    Role.GATEWAY: {
        "sessions": "iu", "rollout_servers": "iu", "counters": "iu", "processes": "iu", "dead_letters": "i",
    },
    Role.RUNNER: {
        "rollouts": "u", "attempts": "iu", "transitions": "i", "counters": "iu", "processes": "iu", "blobs": "iu",
    },
    Role.TRAINER: {
        "batches": "iu", "batch_items": "iu", "batch_rollouts": "i", "train_steps": "i", "trained_steps": "i", "policy_versions": "i",
        "groups": "u", "queue": "u", "transitions": "i", "outbox": "i", "counters": "iu",
        "processes": "iu",
    },
}  # fmt: skip


@pytest.mark.parametrize("role", WRITES)
async def test_a_role_may_read_everything_and_write_what_its_code_writes(
    engine: AsyncEngine, role: Role
) -> None:
    await a_row_in_every_table(engine)
    query = """
        SELECT relname, relkind::text AS kind, has_table_privilege(:role, c.oid, 'SELECT') AS reads, concat(
            CASE WHEN has_table_privilege(:role, c.oid, 'INSERT') THEN 'i' END,
            CASE WHEN has_any_column_privilege(:role, c.oid, 'UPDATE') THEN 'u' END,
            CASE WHEN has_table_privilege(:role, c.oid, 'DELETE') THEN 'd' END,
            CASE WHEN has_table_privilege(:role, c.oid, 'TRUNCATE') THEN 't' END) AS writes
        FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
          AND relname <> 'alembic_version'"""
    async with engine.connect() as connection:
        rows = (await connection.execute(text(query), {"role": role.value})).all()
    assert [row.relname for row in rows if not row.reads] == []
    assert {row.relname: row.writes for row in rows if row.writes} == WRITES[role]


async def test_the_reader_reads_every_view_and_writes_nothing(engine: AsyncEngine, database_url: str) -> None:
    run = await a_row_in_every_table(engine)
    async with open_engine(database_url, Role.READER) as reader:
        async with reader.connect() as connection:
            views = await connection.scalars(
                text("SELECT viewname FROM pg_views WHERE schemaname = 'public'")
            )
            for view in views.all():
                query = text(f"SELECT count(*) FROM {view} WHERE run_id = :r")
                found = await connection.scalar(query, {"r": run.run_id})
                assert found or view == "window_state", f"{view} is empty"
        await refused(reader, "INSERT INTO counters VALUES (1, 'x', 1)", "25006")
        await refused(reader, f"SELECT open_partition({run.run_id + 1})", "25006")
    async with open_engine(database_url, Role.RUNNER) as runner:
        await refused(runner, f"SELECT open_partition({run.run_id + 1})", "42501")
        await refused(runner, "UPDATE groups SET state = 'trained'", "42501")


@pytest.fixture
async def roles(database_url: str) -> AsyncIterator[dict[Role, AsyncEngine]]:
    async with (
        open_engine(database_url, Role.RUNNER) as runner,
        open_engine(database_url, Role.TRAINER) as trainer,
        open_engine(database_url, Role.GATEWAY) as gateway,
    ):
        yield {Role.RUNNER: runner, Role.TRAINER: trainer, Role.GATEWAY: gateway}


async def test_each_process_can_do_its_work_with_its_role(
    engine: AsyncEngine, roles: dict[Role, AsyncEngine]
) -> None:
    run = await builders.make_run(engine, small())
    await builders.ready_groups(engine, run, ["a", "b"], builders.Author())
    [group_id] = await builders.accepted(engine, run, ["c"])
    await builders.dispatch(engine, run)
    async with roles[Role.RUNNER].begin() as runner:
        rollout_id = (await rollouts_of(runner, group_id))[0]
        id = run.run_id
        held = await leases.lease(runner, id, rollout_id, 1, "r", 30.0)
        assert held is not None
        assert await leases.heartbeat(runner, id, "r", {rollout_id: 1}, 30.0) == {rollout_id}
        assert not await leases.lease(runner, id, rollout_id, 1, "r", 30.0, before=RolloutState.FINISHED)
        assert not await settled(
            runner, run.run_id, [MessageKey(rollout_id=rollout_id, epoch=1, idx=0, kind=MessageKind.STEP)]
        )
        await transitions.count(runner, run.run_id, "assignments_stale")
    async with roles[Role.TRAINER].begin() as trainer:
        await builders.publish_first(trainer, run)
        batch = await batches.take(trainer, run.run_id, queue_policy("windowed", 6, 0.3), 2, 1)
        assert batch is not None
        assert await batches.commit(
            trainer,
            run.run_id,
            run.name,
            batch=batch,
            new=NewVersion(version=1, parent=0, path="/v1", manifest_sha="11"),
            metrics=[{"loss": 1.0}],
            subject="policy.x",
        )
    async with roles[Role.GATEWAY].begin() as gateway:
        session = {"run_id": run.run_id, "rollout_id": rollout_id, "attempt": 1, "epoch": 1, "budget": {}}
        await gateway.execute(insert(sessions).values(**session, token_hash=b"h", expires=text("now()")))
        await gateway.execute(text("UPDATE sessions SET state = 'sealed'"))
        await gateway.execute(insert(rollout_servers).values(run_id=run.run_id, url="http://127.0.0.1:9"))


async def test_sslmode_of_a_url_is_understood_as_every_client_of_postgres_does(database_url: str) -> None:
    bare = database_url.partition("?")[0]
    async with open_engine(f"{bare}?sslmode=disable") as engine, engine.connect() as connection:
        assert await connection.scalar(text("select 1")) == 1
    with pytest.raises(ServiceError, match="does not speak TLS, which sslmode=require"):
        async with open_engine(f"{bare}?sslmode=require"):
            pass
