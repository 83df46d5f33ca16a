"""Verdicts once more, for groups that no batch has: after the tests of their tasks, or what runs them, were mended.

A group that is ready goes back to dispatched, and its verified rollouts to finished under a new epoch; whoever verifies brings a new revision of each
verdict, and the last one concludes the group again: new revisions of its rewards, ready or filtered. So nothing is taken that is half judged
anew, and a verdict that was on its way is of an old epoch: counted, and dropped. Whatever a batch holds, or has ended otherwise, stays as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import GroupState, Purpose, RolloutState
from orchestrator.pool import history
from orchestrator.pool.tables import groups, rollouts, tasks

OPEN = (GroupState.ACCEPTED, GroupState.DISPATCHED, GroupState.READY)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which training groups: of these domains and tasks, by name. Empty: of any."""

    domains: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    def of(self, run_id: int) -> ColumnElement[bool]:
        condition = (groups.c.run_id == run_id) & (groups.c.purpose == Purpose.TRAIN)
        if self.domains:
            condition &= groups.c.domain.in_(self.domains)
        if self.tasks:
            condition &= tasks.c.name.in_(self.tasks)
        return condition


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that no batch has, locked; `body` is its packed task."""

    group_id: int
    state: GroupState
    task: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Anew:
    """A rollout that waits for a verdict again."""

    rollout_id: int
    attempt: int
    epoch: int


async def open_groups(connection: AsyncConnection, run_id: int, chosen: Chosen) -> list[OpenGroup]:
    """Lock those that were chosen and are open, by id. The queue row must be locked."""
    rows = await connection.execute(
        select(groups.c.group_id, groups.c.state, tasks.c.name, tasks.c.body)
        .join(tasks, tasks.c.task_id == groups.c.task_id)
        .where(chosen.of(run_id), groups.c.state.in_(OPEN))
        .order_by(groups.c.group_id)
        .with_for_update(of=groups)
    )
    return [OpenGroup(row.group_id, GroupState(row.state), row.name, row.body) for row in rows]


async def left_alone(connection: AsyncConnection, run_id: int, chosen: Chosen) -> dict[str, int]:
    """How many of those that were chosen a batch has, or have ended, by their state."""
    rows = await connection.execute(
        select(groups.c.state, func.count())
        .join(tasks, tasks.c.task_id == groups.c.task_id)
        .where(chosen.of(run_id), groups.c.state.not_in(OPEN))
        .group_by(groups.c.state)
        .order_by(groups.c.state)
    )
    return {state: n for state, n in rows}


async def retarget(
    connection: AsyncConnection, run_id: int, group_ids: Sequence[int], task: Mapping[str, Any]
) -> None:
    """Have these groups be of another edition of their task: `task` holds its row's sha, name, domain, settings and body."""
    task_id = await connection.scalar(
        insert(tasks)
        .values(run_id=run_id, **task)
        .on_conflict_do_update(index_elements=["run_id", "sha"], set_={"name": task["name"]})
        .returning(tasks.c.task_id)
    )
    await connection.execute(update(groups).where(groups.c.group_id.in_(group_ids)).values(task_id=task_id))


async def verify_anew(connection: AsyncConnection, group: OpenGroup, reason: str) -> list[Anew]:
    """Send the group's verified rollouts, and those that are being verified, back to be verified; the group, if ready, with them."""
    rows = (
        await connection.execute(
            select(rollouts.c.rollout_id, rollouts.c.state, rollouts.c.attempt, rollouts.c.lease_epoch)
            .where(
                rollouts.c.group_id == group.group_id,
                rollouts.c.state.in_([RolloutState.VERIFIED, RolloutState.VERIFYING]),
            )
            .order_by(rollouts.c.rollout_id)
            .with_for_update()
        )
    ).all()
    sent: list[Anew] = []
    for row in rows:
        epoch = row.lease_epoch + 1
        moved = await history.move_rollout(
            connection,
            row.rollout_id,
            RolloutState(row.state),
            RolloutState.FINISHED,
            reason=reason,
            values={"lease_epoch": epoch, "lease_owner": None, "lease_until": None, "verify_tries": 0},
        )
        assert moved, "its row is locked"
        sent.append(Anew(row.rollout_id, row.attempt, epoch))
    if group.state is GroupState.READY:
        moved = await history.move_group(connection, group.group_id, GroupState.READY, GroupState.DISPATCHED)
        assert moved and sent, "the queue row is locked, and a ready group has verdicts"
    return sent
