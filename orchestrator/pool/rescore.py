"""Rescore: new verdicts for groups that are in no batch, after their tasks' tests, or the programs that run them, were repaired.

A ready group returns to dispatched, and its verified rollouts to finished under a new epoch. A verifier then writes a new revision of each
verdict, and the last verdict concludes the group again, with new revisions of its rewards, as ready or filtered. So no batch takes a group with
a mixture of old and new verdicts. A verdict in flight has an old epoch: it is counted and dropped. Groups in a batch or ended otherwise stay
unchanged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import GroupState, Purpose, RolloutState
from orchestrator.pool import transitions
from orchestrator.pool.columns import among
from orchestrator.pool.tables import groups, rollouts, tasks

OPEN = (GroupState.ACCEPTED, GroupState.DISPATCHED, GroupState.READY)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Selects training groups: of these domains and tasks, by name. Empty: of any."""

    domains: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    def of(self, run_id: int) -> ColumnElement[bool]:
        condition = (groups.c.run_id == run_id) & (groups.c.purpose == Purpose.TRAIN)
        if self.domains:
            condition &= among(groups.c.domain, self.domains)
        if self.tasks:
            condition &= among(tasks.c.name, self.tasks)
        return condition


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroup:
    """A group that is in no batch, locked; `body` is its packed task."""

    group_id: int
    state: GroupState
    task: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reverification:
    """A rollout that waits for another verdict."""

    rollout_id: int
    attempt: int
    epoch: int


async def open_groups(connection: AsyncConnection, run_id: int, chosen: Chosen) -> list[OpenGroup]:
    """Lock the chosen open groups, by id. The queue row must be locked."""
    rows = await connection.execute(
        select(groups.c.group_id, groups.c.state, tasks.c.name, tasks.c.body)
        .join(tasks, tasks.c.task_id == groups.c.task_id)
        .where(chosen.of(run_id), groups.c.state.in_(OPEN))
        .order_by(groups.c.group_id)
        .with_for_update(of=groups)
    )
    return [
        OpenGroup(group_id=row.group_id, state=GroupState(row.state), task=row.name, body=row.body)
        for row in rows
    ]


async def known(connection: AsyncConnection, run_id: int, shas: Collection[str]) -> set[str]:
    """The hex content hashes among `shas` that tasks of the run have."""
    statement = select(tasks.c.sha).where(
        tasks.c.run_id == run_id, among(tasks.c.sha, [bytes.fromhex(sha) for sha in shas])
    )
    return {sha.hex() for sha in await connection.scalars(statement)}


async def ended(connection: AsyncConnection, run_id: int, chosen: Chosen) -> list[tuple[int, str, str]]:
    """(id, state, reason or empty) of the chosen groups that are not open, newest first, at most 4."""
    rows = await connection.execute(
        select(groups.c.group_id, groups.c.state, func.coalesce(groups.c.reason, ""))
        .join(tasks, tasks.c.task_id == groups.c.task_id)
        .where(chosen.of(run_id), groups.c.state.not_in(OPEN))
        .order_by(groups.c.group_id.desc())
        .limit(4)
    )
    return [(group_id, state, reason) for group_id, state, reason in rows]


async def left_alone(connection: AsyncConnection, run_id: int, chosen: Chosen) -> dict[str, int]:
    """How many of the chosen groups are in a batch or have ended, by their state."""
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
    """Point these groups to another edition of their task: `task` holds its row's sha, name, domain, settings and body."""
    task_id = await connection.scalar(
        insert(tasks)
        .values(run_id=run_id, **task)
        .on_conflict_do_update(index_elements=["run_id", "sha"], set_={"name": task["name"]})
        .returning(tasks.c.task_id)
    )
    await connection.execute(
        update(groups).where(among(groups.c.group_id, group_ids)).values(task_id=task_id)
    )


async def verify_again(connection: AsyncConnection, group: OpenGroup, reason: str) -> list[Reverification]:
    """Send the group's verified and verifying rollouts back to verification; and the group back to dispatched if it is ready."""
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
    sent: list[Reverification] = []
    for row in rows:
        epoch = row.lease_epoch + 1
        moved = await transitions.move_rollout(
            connection,
            row.rollout_id,
            RolloutState(row.state),
            RolloutState.FINISHED,
            reason=reason,
            values={"lease_epoch": epoch, "lease_owner": None, "lease_until": None, "verify_tries": 0},
        )
        assert moved, "its row is locked"
        sent.append(Reverification(row.rollout_id, row.attempt, epoch))
    if group.state is GroupState.READY:
        moved = await transitions.move_group(
            connection, group.group_id, GroupState.READY, GroupState.DISPATCHED
        )
        assert moved and sent, "the queue row is locked, and a ready group has verdicts"
    return sent
