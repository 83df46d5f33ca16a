"""Submissions of one run, as the client that published them sees them: the group of each, and its state; the rollouts of a label."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import GroupState
from orchestrator.pool.columns import among
from orchestrator.pool.rows import from_row
from orchestrator.pool.tables import groups

UNFINISHED = frozenset({GroupState.ACCEPTED, GroupState.DISPATCHED})
"""States in which rollouts of a group still have to end."""
_OF_LABEL = text(
    "select g.done, g.state, count(*) as n, coalesce(sum((w.performance >= 1)::int), 0) as ok"
    " from groups g join rollouts r on r.group_id = g.group_id left join latest_rewards w on w.rollout_id = r.rollout_id and r.state = 'verified'"
    " where g.run_id = :run and g.label = :label group by 1, 2"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedGroup:
    """The group that an accepted submission made. `reason`: why it was filtered or is dead, else None."""

    submission: str
    group_id: int
    state: GroupState
    reason: str | None

    @property
    def finished(self) -> bool:
        """Whether all its rollouts have ended and, unless it is filtered or dead, have their rewards."""
        return self.state not in UNFINISHED


async def submitted_groups(
    connection: AsyncConnection, run_id: int, submissions: Collection[str]
) -> Sequence[SubmittedGroup]:
    """The groups of these submissions, ordered by submission. Submissions without a group are left out."""
    columns = (groups.c.submission, groups.c.group_id, groups.c.state, groups.c.reason)
    query = (
        select(*columns)
        .where(groups.c.run_id == run_id, among(groups.c.submission, submissions))
        .order_by(groups.c.submission)
    )
    rows = await connection.execute(query)
    return [from_row(SubmittedGroup, row) for row in rows]


@dataclass(frozen=True, slots=True)
class RecordingProgress:
    """Rollouts of one label. `ended` are in a terminal state, `scored` among them have a verdict, `succeeded` passed."""

    ended: int
    scored: int
    succeeded: int


async def recording_progress(connection: AsyncConnection, run_id: int, label: str) -> RecordingProgress:
    """How far the rollouts of a label are."""
    rows = (await connection.execute(_OF_LABEL, {"run": run_id, "label": label})).all()
    return RecordingProgress(
        ended=sum(row.n for row in rows if row.done),
        scored=sum(row.n for row in rows if row.state == GroupState.SCORED),
        succeeded=sum(row.ok for row in rows if row.state == GroupState.SCORED),
    )
