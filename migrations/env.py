"""Runs the migrations against `sqlalchemy.url` of the alembic configuration, else $DATABASE_URL, or the file $DATABASE_URL_FILE.

A migration that contracts the schema (drops, renames, demands more) says `oldest_code = "NNNN"`: the revision of the oldest code that may
still run. The newest of those that were run stands in the database's table `compatibility` (ops/guides/upgrade.md).
"""

import asyncio
import re
from collections.abc import Collection
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, pool, text
from sqlalchemy.ext.asyncio import create_async_engine

from orchestrator.environment import named
from orchestrator.failpoints import boundary
from orchestrator.pool.engine import sqlalchemy_url
from orchestrator.pool.tables import metadata

# What autogenerate must not see: partitions are made per run.
PARTITION = re.compile(r"(steps|step_routes|trained_steps|messages|prompts)_\d+")


SINCE = "0017"  # the revision that made the table `compatibility`


def _keep_compatibility(*, ctx: MigrationContext, heads: Collection[str], **_: Any) -> None:
    """After each migration, up or down."""
    assert ctx.script is not None
    run = list(ctx.script.iterate_revisions(tuple(heads), "base"))
    since = next((one for one in run if one.revision == SINCE), None)
    if since is None:
        return
    oldest = max(
        (one.module.oldest_code for one in run if hasattr(one.module, "oldest_code")),
        default=since.down_revision,
    )
    ctx.execute(text(f"UPDATE compatibility SET oldest_code = '{oldest}'"))


def _include(name: str | None, kind: str, parents: object) -> bool:
    return not (kind == "table" and name is not None and PARTITION.fullmatch(name))


def _run(connection: Connection) -> None:
    # Begins the transaction, whose end alembic then leaves to `_online`. Of two at once, one waits and finds it done.
    connection.execute(text("SELECT pg_advisory_xact_lock(7317)"))
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=_include,
        compare_server_default=False,
        on_version_apply=_keep_compatibility,
    )
    with context.begin_transaction():
        context.run_migrations()


async def _online(url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(url), poolclass=pool.NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(_run)
        await boundary("schema.commit", connection.commit)
    await engine.dispose()


url = context.config.get_main_option("sqlalchemy.url") or named("DATABASE_URL")
if not url:
    raise SystemExit("no database is named: set DATABASE_URL=postgresql://user:password@host/database")
if context.is_offline_mode():
    context.configure(
        url=sqlalchemy_url(url),
        target_metadata=metadata,
        literal_binds=True,
        on_version_apply=_keep_compatibility,
    )
    with context.begin_transaction():
        context.run_migrations()
else:
    asyncio.run(_online(url))
