"""Every query of the guides and the README runs on a real data pool; those of the cookbook are tested separately, with their answers."""

import re
import shlex

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool.engine import Role, open_engine
from tests import builders
from tests.guides import PAGES, blocks, commands, inline
from tests.integration.pool.rig import small
from tests.unit.cli.test_help import calls

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

QUERY = re.compile(r"\s*select\b[\s\S]*\bfrom\b|\s*select \w+\(")


def queries(page: str) -> list[str]:
    """The queries of `penstock sql`, of indented blocks and of inline code, and all blocks of SQL outside the cookbook."""
    given = [*commands(page), *(span for span in inline(page) if span.startswith("penstock sql "))]
    found = [
        word
        for line in given
        for call in calls(line)
        if call[:1] == ["sql"]
        for word in call[1:]
        if QUERY.match(word)
    ]
    found += [
        block.text for block in blocks(page) if block.language == "indented" and QUERY.match(block.text)
    ]
    found += [span for span in inline(page) if QUERY.match(span)]
    if not page.endswith("sql-cookbook.md"):
        found += [block.text for block in blocks(page) if block.language == "sql"]
    return found


def test_queries_are_found_where_they_stand() -> None:
    counts = {page: len(queries(page)) for page in PAGES}
    assert (
        counts["README.md"] >= 1
        and counts["ops/guides/why-is-it-stuck.md"] >= 3
        and counts["ops/guides/security.md"] == 1
    )
    assert (
        counts["ops/guides/stages.md"] == 1
        and counts["ops/guides/operate.md"] >= 2
        and counts["ops/guides/losses.md"] >= 1
    )


async def test_every_query_of_a_guide_names_its_run(engine: AsyncEngine) -> None:
    """A database may hold several runs: without it, their rows stand among each other. A key of the database is enough."""
    of_runs = text("SELECT table_name FROM information_schema.columns WHERE column_name = 'run_id'")
    async with engine.connect() as connection:
        tables = set((await connection.scalars(of_runs)).all())
    assert {"groups", "train_curve"} <= tables
    named = re.compile(r"\brun_id\b|\b(rollout|group)_id = \d")
    assert [
        (page, query)
        for page in PAGES
        for query in queries(page)
        if tables & set(re.findall(r"\b(?:from|join) (\w+)", query, re.I)) and not named.search(query)
    ] == []


async def test_every_query_of_a_guide_runs_for_the_reader(engine: AsyncEngine, database_url: str) -> None:
    run = await builders.make_run(engine, small("guides"))
    await builders.ready_groups(engine, run, ["a"], builders.Author())
    async with open_engine(database_url, Role.READER) as reader:
        for page in PAGES:
            for query in queries(page):
                if query.startswith("select"):
                    async with reader.connect() as connection:
                        await connection.exec_driver_sql(query)
                else:  # the owner of the database makes a role; roles belong to all databases of the cluster
                    async with engine.connect() as connection:
                        await connection.execute(text(query))
                        await connection.rollback()


async def test_the_runbook_of_postgres_lists_a_transaction_that_is_held_open(engine: AsyncEngine) -> None:
    """The query is one of psql, as the owner: the role of `penstock sql` sees no other session."""
    page = "ops/runbooks/postgres-away.md"
    [line] = [
        line for block in blocks(page) for line in block.text.splitlines() if "pg_stat_activity" in line
    ]
    program, url, _, query = shlex.split(line)
    assert (program, url) == ("psql", "$DATABASE_URL")
    async with engine.connect() as holder, engine.connect() as person:
        held = await holder.scalar(
            text("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        )
        found = (await person.exec_driver_sql(query)).all()
    assert (held, "idle in transaction") in [(row.application_name, row.state) for row in found]
