"""Recorded trajectories, selected by kind and outcome: for supervised training and exports."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, text, true
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import Purpose, RolloutState
from orchestrator.pool.rows import from_row
from orchestrator.pool.steps import StoredStep, trajectories
from orchestrator.pool.tables import groups, rewards, rollouts
from orchestrator.queries.attempt_filters import has
from orchestrator.queries.latest_reward import counts

PAGE = 500  # rollouts in memory at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which verified rollouts; None means any, label "" those without one. `min_performance` in [0, 1] keeps those that scored at least that."""

    label: str | None = None
    purpose: Purpose | None = None
    domain: str | None = None
    scaffold: str | None = None
    min_performance: float | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedRollout:
    """One rollout: the steps of its verified attempt in idx order, and the performance that counts."""

    rollout_id: int
    submission: str
    domain: str
    scaffold: str
    performance: float
    steps: list[StoredStep]


async def recorded(
    connection: AsyncConnection, run_id: int, wanted: Selection
) -> AsyncIterator[RecordedRollout]:
    """Rollouts of one run with a reward, ordered by submission and member, independent of the order in which they ended.

    Use it inside one REPEATABLE READ transaction if the run is live.
    """
    newest = (
        select(rewards.c.rollout_id, rewards.c.performance, rewards.c.attempt)
        .join(rollouts, rollouts.c.rollout_id == rewards.c.rollout_id)
        .where(rewards.c.run_id == run_id, text(counts("rewards", "rollouts")))
        .ext(distinct_on(rewards.c.rollout_id))
        .order_by(rewards.c.rollout_id, rewards.c.revision.desc())
        .subquery()
    )
    rows = (
        await connection.execute(
            select(
                rollouts.c.rollout_id,
                newest.c.attempt,
                groups.c.submission,
                groups.c.domain,
                groups.c.scaffold,
                newest.c.performance,
            )
            .join(groups, groups.c.group_id == rollouts.c.group_id)
            .join(newest, newest.c.rollout_id == rollouts.c.rollout_id)
            .where(
                *_matching(run_id, wanted),
                newest.c.performance >= wanted.min_performance
                if wanted.min_performance is not None
                else true(),
            )
            .order_by(groups.c.submission, rollouts.c.member)
        )
    ).all()
    for start in range(0, len(rows), PAGE):
        page = rows[start : start + PAGE]
        steps = await trajectories(connection, run_id, [(row.rollout_id, row.attempt) for row in page])
        for row in page:
            yield from_row(RecordedRollout, row, without=("attempt",), steps=steps.get(row.rollout_id, []))


async def without_verdict(connection: AsyncConnection, run_id: int, wanted: Selection) -> int:
    """How many rollouts of the selection ended without a verdict, so that no share counts them."""
    query = (
        select(func.count())
        .select_from(rollouts)
        .join(groups, groups.c.group_id == rollouts.c.group_id)
        .where(*_matching(run_id, wanted), rollouts.c.state == RolloutState.LOST)
    )
    return int((await connection.execute(query)).scalar_one())


def _matching(run_id: int, wanted: Selection) -> list[ColumnElement[bool]]:
    """The conditions of a selection on groups and their rollouts."""
    pairs = (
        (groups.c.label, wanted.label),
        (groups.c.purpose, wanted.purpose),
        (groups.c.domain, wanted.domain),
        (groups.c.scaffold, wanted.scaffold),
    )
    return [
        rollouts.c.run_id == run_id,
        *(has(column, value) for column, value in pairs if value is not None),
    ]
