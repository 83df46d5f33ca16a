"""A pattern of SQL's LIKE that was made of a text matches that text alone; a text in a statement is that text."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.languages import like, sql_text
from orchestrator.queries.autoscaling import work_of_pool

pytestmark = [pytest.mark.anyio, pytest.mark.services]

ODD = [
    "",
    "a",
    "50%",
    "a_b",
    "a\\",
    "\\%",
    "\\\\_",
    "it's",
    "'; select 1 --",
    "%%",
    "é_",
    "$1",
    ":a",
    "E'\\n'",
]


async def test_a_pattern_matches_its_text_and_no_other(engine: AsyncEngine) -> None:
    statement = text(
        "SELECT t, p FROM unnest(cast(:texts AS text[])) WITH ORDINALITY AS a(t, i), unnest(cast(:patterns AS text[])) WITH ORDINALITY AS b(p, j)"
        " WHERE (t LIKE p) <> (i = j)"
    )
    async with engine.connect() as connection:
        wrong = (
            await connection.execute(statement, {"texts": ODD, "patterns": [like(each) for each in ODD]})
        ).all()
        assert wrong == []
        for each in ODD:
            assert (
                await connection.scalar(text(f"SELECT {sql_text(each).replace(':', chr(92) + ':')}")) == each
            )
        counted = work_of_pool("it's", "queued", "running", "runner_a%")
        assert (await connection.exec_driver_sql(counted.replace("%", "%%"))).scalar_one() == 0
