"""The numbers that `penstock size` reads of a run: waiting for a slot is separate from the platform's own waits, and spans
alternate in whole rounds."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster.measured import (
    rounds,
    span,
    taking_turns,
)
from orchestrator.queries import workload as statements
from orchestrator.queries.workload_figures import Span
from orchestrator.scheduling.admission import QueueSettings

pytestmark = [pytest.mark.anyio, pytest.mark.services]

START = datetime(2026, 1, 1, tzinfo=UTC)
QUEUE = QueueSettings(capacity=6, batch_groups=2, group_size=2, max_staleness=1, running_rollouts=5)
"""(S + 1) · P = 4 groups in flight: a round of two batches."""


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def values(whole: Span, reported: float = 0.0) -> dict[str, Any]:
    return {
        "run": 1,
        "report_s": reported,
        "since": whole.since,
        "until": whole.until,
        "within": whole.within,
    }


async def insert(connection: AsyncConnection, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the rows unchanged, without the rows that they refer to."""
    await connection.execute(text("SET LOCAL session_replication_role = replica"))
    names = ", ".join(rows[0])
    statement = f"INSERT INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name in rows[0])})"
    await connection.execute(text(statement), list(rows))


async def committed(connection: AsyncConnection, commits: Sequence[float]) -> None:
    rows = [
        {
            "run_id": 1,
            "batch_no": number,
            "size": 2,
            "state": "committed",
            "digest": b"",
            "groups_so_far": 0,
            "committed": at(when),
        }
        for number, when in enumerate(commits)
    ]
    await insert(connection, "batches", rows)


async def one_group_of(connection: AsyncConnection, members: int, dispatched: float) -> None:
    group = {
        "run_id": 1,
        "group_id": 1,
        "submission": "a",
        "task_id": 1,
        "domain": "general",
        "scaffold": "shell",
        "size": members,
    }
    await insert(
        connection,
        "groups",
        [{**group, "created": at(0), "dispatched": at(dispatched), "state": "dispatched", "seq": 0}],
    )
    rollouts = [{"run_id": 1, "rollout_id": n, "group_id": 1, "member": n, "seed": n} for n in range(members)]
    await insert(connection, "rollouts", rollouts)


async def test_a_rollout_that_waited_for_a_slot_waited_for_the_platform_only_since_one_was_free(
    engine: AsyncEngine,
) -> None:
    async with engine.begin() as connection:
        await committed(connection, [0.0, 50.0, 100.0])
        await one_group_of(connection, 4, dispatched=10.0)
        lives = [
            (10.2, 20.0),
            (10.4, 30.0),
            (20.3, 40.0),
            (30.7, None),
        ]  # two slots: two start, two wait for them
        rows = [
            {
                "run_id": 1,
                "rollout_id": n,
                "attempt": 1,
                "epoch": 1,
                "started": at(began),
                "ended": at(over) if over else None,
            }
            for n, (began, over) in enumerate(lives)
        ]
        await insert(connection, "attempts", rows)
        whole = await span(connection, 1)
        row = (await connection.execute(text(statements.LEASED), {**values(whole), "slots": 2})).one()
        assert float(row.mean) == pytest.approx((0.2 + 0.4 + 0.3 + 0.7) / 4)
        many = (await connection.execute(text(statements.LEASED), {**values(whole), "slots": 9})).one()
        assert float(many.mean) == pytest.approx((0.2 + 0.4 + 10.3 + 20.7) / 4), "were there slots, all of it"
        held = float(await connection.scalar(text(statements.HELD), values(whole)) or 0)
        assert held == pytest.approx(9.8 + 19.6 + 19.7 + (100 - 30.7)), (
            "who is still at work counts until the end"
        )
        parameters = {**values(whole, 0.5), "slots": 2}
        sooner = (await connection.execute(text(statements.LEASED), parameters)).one()
        assert float(sooner.mean) == pytest.approx((0.2 + 0.4 + 0.8 + 1.2) / 4), (
            "free before that was recorded"
        )
        held = float(await connection.scalar(text(statements.HELD), parameters) or 0)
        assert held == pytest.approx(9.8 + 19.6 + 19.7 + (100 - 30.7) - 3 * 0.5)
        admitted = await connection.scalar(text(statements.ADMITTED), values(whole))
        assert admitted == pytest.approx(10.0), "the last that could make room was the commit at 0"


async def test_spans_take_turns_in_whole_rounds_and_what_is_between_is_in_neither(
    engine: AsyncEngine,
) -> None:
    assert rounds(QUEUE) == 2
    commits = [float(number * number) for number in range(20)]
    async with engine.begin() as connection:
        await committed(connection, commits)
        first, second = await taking_turns(connection, 1, QUEUE, 1)
        # 18 intervals are nine rounds; eight of them are turns: 1 2 2 1 1 2 2 1.
        edges = [at(commits[1 + 2 * turn]) for turn in range(9)]
        assert first.parts == ((edges[0], edges[1]), (edges[3], edges[5]), (edges[7], edges[8]))
        assert second.parts == ((edges[1], edges[3]), (edges[5], edges[7]))
        assert (first.batches, second.batches) == (8, 8)
        assert first.seconds + second.seconds == pytest.approx((edges[8] - edges[0]).total_seconds())
        within = text(
            f"SELECT count(*) FROM batches WHERE run_id = :run AND {statements.WITHIN.format(time='committed')}"
        )
        counted = [(await connection.execute(within, values(part))).scalar_one() for part in (first, second)]
        assert counted == [8, 8]
        longer, _ = await taking_turns(connection, 1, QUEUE, 0, 8)
        assert longer.batches == 4, "four rounds are four turns"
        with pytest.raises(ConfigurationError, match="four rounds of 2 take 9: let the run train longer"):
            await taking_turns(connection, 1, QUEUE, 0, 7)
        with pytest.raises(ConfigurationError, match="three at least"):
            await span(connection, 1, 0, 1)
