"""Runs the migrations against `sqlalchemy.url` of the alembic configuration, or else $DATABASE_URL, or the file $DATABASE_URL_FILE.

A migration that contracts the schema (drops, renames, demands more) declares `oldest_code = "NNNN"`: the revision of the oldest code that may
still run. The database's table `compatibility` holds the newest declared value of all applied migrations (ops/guides/upgrade.md).

Migrations do not comment tables or columns: after the newest migration, these get the `comment=` texts of orchestrator/pool/tables.
"""

import asyncio
import re
from collections.abc import Collection
from configparser import InterpolationError
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection, pool, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import SetColumnComment, SetTableComment

from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.pool.address import Address, address_of
from orchestrator.pool.engine import (
    CANNOT_CONNECT,
    DRIVER,
    ENCODING,
    OLDEST_CODE,
    bare_engine,
    check_migratable,
    refusal,
)
from orchestrator.pool.locks import MODE
from orchestrator.pool.reader_rights import end_in_the_way
from orchestrator.pool.rights import check_encoding, check_schema, no_place
from orchestrator.pool.tables import metadata
from orchestrator.pool.transact import sentence
from orchestrator.runtime.failpoints import boundary
from orchestrator.runtime.unreachable import named_url, of_key, remember

# Hidden from autogenerate: each run creates its partitions.
PARTITION = re.compile(r"(steps|step_routes|trained_steps|messages|prompts)_\d+")


def _keep_compatibility(*, ctx: MigrationContext, heads: Collection[str], **_: Any) -> None:
    """Update `compatibility` after each migration, up or down."""
    assert ctx.script is not None
    if not (run := list(ctx.script.iterate_revisions(tuple(heads), "base"))):
        return
    oldest = max(
        (one.module.oldest_code for one in run if hasattr(one.module, "oldest_code")),
        default=OLDEST_CODE,
    )
    ctx.execute(text(f"UPDATE compatibility SET oldest_code = '{oldest}'"))


def _comment(*, ctx: MigrationContext, heads: Collection[str], **_: Any) -> None:
    """After the newest migration: set the comments of tables and columns."""
    assert ctx.script is not None
    if set(heads) != set(ctx.script.get_heads()):
        return
    for table in metadata.sorted_tables:
        ctx.execute(SetTableComment(table))
        for column in table.columns:
            ctx.execute(SetColumnComment(column))


# Of two concurrent migrations, the second waits and has nothing to do. In an empty database it waits for the other's table, which alembic would make.
# Only who may make and write tables can make it wait (orchestrator/pool/locks.py).
ALONE = f"""DO $$ BEGIN
    IF to_regclass('public.alembic_version') IS NULL THEN
        BEGIN
            CREATE TABLE alembic_version (version_num varchar(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
        EXCEPTION WHEN duplicate_table OR unique_violation THEN NULL;
        END;
    END IF;
    LOCK TABLE alembic_version IN {MODE} MODE;
END $$"""
UNBLOCK_S = 1.0

AFTER_EACH = (_keep_compatibility, _comment)


def _include(name: str | None, kind: str, parents: object) -> bool:
    return not (kind == "table" and name is not None and PARTITION.fullmatch(name))


def _run(connection: Connection) -> None:
    # Starts the transaction; alembic then leaves its end to `_online`.
    check_schema(*connection.execute(text("SELECT session_user, current_schema()")).one())
    check_encoding(*connection.execute(text(ENCODING)).one())
    connection.execute(text(ALONE))
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=_include,
        compare_server_default=False,
        on_version_apply=AFTER_EACH,
    )
    check_migratable(context.get_context().get_current_revision())
    with context.begin_transaction():
        context.run_migrations()


async def _online(url: str) -> None:
    engine = bare_engine(url, poolclass=pool.NullPool)
    try:
        async with engine.connect() as connection:
            pid = await connection.scalar(text("SELECT pg_backend_pid()"))
            unblocking = asyncio.create_task(_unblock(engine, pid))
            try:
                await connection.run_sync(_run)
            finally:
                unblocking.cancel()
                await asyncio.gather(unblocking, return_exceptions=True)
            await boundary("schema.commit", connection.commit)
    finally:
        await engine.dispose()


async def _unblock(engine: AsyncEngine, pid: int) -> None:
    """End sessions of readers that have kept the migration waiting: a table that changes waits for each reader of it."""
    while True:
        await asyncio.sleep(UNBLOCK_S)
        async with engine.connect() as connection:
            if await connection.scalar(
                text(
                    "SELECT to_regrole('penstock_reader') IS NOT NULL AND cardinality(pg_blocking_pids(:pid)) > 0"
                ),
                {"pid": pid},
            ):
                await end_in_the_way(connection, pid)


def _sentence(error: BaseException, address: Address) -> str:
    """The sentence for a person at the command line."""
    statement = error.statement if isinstance(error, DBAPIError) else None
    if not statement:
        return str(refusal(error, address))
    assert isinstance(error, DBAPIError)
    message = sentence(error)
    if "permission denied for schema" in message or "permission denied for database" in message:
        return no_place(address.user or "LOGIN", address.database or "DATABASE")
    return (
        f"PostgreSQL at {address.place} refused a statement ({message}): {' '.join(statement.split())[:200]}"
    )


def _upgrade(url: str) -> None:
    """Run online. A caller in Python gets the error; the command line shows one sentence."""
    if context.config.cmd_opts is None:
        asyncio.run(_online(url))
        return
    try:
        address = address_of(url)
        try:
            asyncio.run(_online(url))
        except CANNOT_CONNECT as error:
            raise CommandError(_sentence(error, address)) from None
    except ServiceError as error:
        raise CommandError(str(error)) from None


def _configured() -> str | None:
    """`sqlalchemy.url`. Raises ConfigurationError for a single %, which the file's format does not take; its own error shows the login."""
    try:
        return context.config.get_main_option("sqlalchemy.url")
    except InterpolationError:
        raise ConfigurationError(
            f"sqlalchemy.url of {context.config.config_file_name or 'the configuration'} has a single %: write each % as %% there, such as %%40"
        ) from None


try:
    if url := _configured():
        remember(url, of_key("sqlalchemy.url", context.config.config_file_name or "the configuration"))
    else:
        url = named_url("DATABASE_URL")
except ConfigurationError as error:
    raise CommandError(str(error)) from None
if not url:
    raise CommandError("no database is named: set DATABASE_URL=postgresql://user:password@host/database")
if context.is_offline_mode():
    context.configure(
        url=DRIVER,
        target_metadata=metadata,
        literal_binds=True,
        on_version_apply=AFTER_EACH,
    )
    with context.begin_transaction():
        context.run_migrations()
else:
    _upgrade(url)
