"""Failpoints of transactions: before, nothing is committed; after, it is committed and not announced."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ServiceError
from orchestrator.pool.engine import open_engine
from orchestrator.pool.transact import once, transact
from orchestrator.runtime import failpoints

pytestmark = [pytest.mark.anyio, pytest.mark.services]

AT = "relay.commit"


@pytest.fixture
async def engine(empty_database_url: str) -> AsyncIterator[AsyncEngine]:
    async with open_engine(empty_database_url, size=1) as engine:
        async with engine.begin() as connection:
            await connection.execute(
                text("create table tries (n int generated always as identity, note text)")
            )
        yield engine


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(failpoints, "directory", tmp_path)
    return tmp_path


class Work:
    """Writes a row whenever it runs."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, connection: AsyncConnection) -> int:
        self.runs += 1
        await connection.execute(
            text("insert into tries (note) values (:note)"), {"note": f"run {self.runs}"}
        )
        return self.runs


async def committed(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list((await connection.scalars(text("select note from tries order by n"))).all())


@pytest.mark.parametrize(
    ("point", "action", "rows"),
    [
        (f"{AT}.before", "raise", ["run 2"]),
        (f"{AT}.after", "raise", ["run 1", "run 2"]),
        (AT, "duplicate", ["run 1", "run 2"]),
        (f"{AT}.before", "delay 0.01", ["run 1"]),
    ],
)
async def test_a_transaction_is_repeated_after_a_lost_commit_and_after_a_lost_answer(
    engine: AsyncEngine, armed: Path, point: str, action: str, rows: list[str]
) -> None:
    (armed / point).write_text(action)
    last = await transact(engine, Work(), at=AT)
    assert await committed(engine) == rows
    assert rows[-1] == f"run {last}"


async def test_a_persons_command_that_loses_postgres_says_that_it_may_be_done(
    engine: AsyncEngine, armed: Path
) -> None:
    (armed / "person.commit.after").write_text("raise")
    with pytest.raises(ServiceError, match="look, and ask again if it was not"):
        await once(engine, Work(), at="person.commit")
    assert await committed(engine) == ["run 1"]
