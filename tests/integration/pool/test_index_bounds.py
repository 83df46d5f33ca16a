"""No value can be too long for an index: each indexed text has a bound, or the index holds its hash.

A row of a btree index holds 2,704 bytes at most. PostgreSQL refuses a longer one with an error (SQLSTATE 54000).
"""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.cli.processes import MAX_NAME_LENGTH
from orchestrator.contracts import limits, states
from orchestrator.pool.counter_names import NAMES
from orchestrator.pool.speed_noise import KEY_BYTES

pytestmark = [pytest.mark.anyio, pytest.mark.services]

MOST = 2_704
NAME = 32  # orchestrator.contracts.ids: of runs, domains, pools
SUBMISSION = 128  # orchestrator.bus.subjects.check_submission
WORD = 256 * 4  # orchestrator.tasks.settings: cut to 256 characters of at most 4 bytes
SHA = 32
BOUNDS = {
    "runs.name": NAME,
    "submissions.submission": SUBMISSION,
    "groups.submission": SUBMISSION,
    "groups.domain": NAME,
    "groups.difficulty": WORD,
    "groups.label": limits.MAX_LABEL * 4,
    "step_marks.reason": limits.MAX_NAME_LENGTH * 4,
    "speed_noise.scaffold": KEY_BYTES,
    "processes.host": 253,  # a host's name
    "processes.process": MAX_NAME_LENGTH * 4,
    "rollout_servers.url": 2_000,  # orchestrator.contracts.http_urls
    "counters.name": max(map(len, NAMES)) + 32,
    "batches.state": max(map(len, states.BatchState)),
    "rollouts.state": max(map(len, states.RolloutState)),
    "groups.state": max(map(len, states.GroupState)),
    "transitions.kind": max(map(len, states.Entity)),
}
HASHES = {"sha", "token_hash", "digest"}
EXPRESSIONS = {
    "groups_eval": limits.MAX_LABEL * 4,
    "dead_letters_once": 2 * 256 * 4 + SHA,
    "artifacts_once": SHA,
}
COLUMNS = """SELECT DISTINCT i.indexrelid::regclass::text AS index, coalesce(p.inhparent, i.indrelid)::regclass::text AS "table",
        a.attname AS "column"
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_inherits p ON p.inhrelid = i.indrelid
    CROSS JOIN unnest(i.indkey) AS k(number) LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    WHERE n.nspname = 'public' AND c.relname <> 'alembic_version'
        AND (a.attname IS NULL OR a.atttypid IN ('text'::regtype, 'bytea'::regtype, 'varchar'::regtype))
    ORDER BY 1, 3"""


async def test_every_indexed_text_has_a_bound_and_every_index_row_fits(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        rows = (await connection.execute(text(COLUMNS))).all()
    sizes: dict[str, int] = {}
    for index, table, column in rows:
        if column is None:
            assert index in EXPRESSIONS, f"{index} has an expression: name the bytes that it holds at most"
            bound = EXPRESSIONS[index]
        elif column in HASHES:
            bound = SHA
        else:
            assert f"{table}.{column}" in BOUNDS, (
                f"{index} holds {table}.{column}, which has no bound: an agent or a publisher may choose it"
            )
            bound = BOUNDS[f"{table}.{column}"]
        sizes[index] = sizes.get(index, 100) + bound  # 100: numbers, heads
    assert len(rows) > 15 and not {index: size for index, size in sizes.items() if size > MOST}
