"""The end of a run: what is still open becomes filtered(run_ended); what lies in a closed batch is left to be committed."""

from sqlalchemy import func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import (
    ROLLOUT_TERMINAL,
    BatchState,
    FailureClass,
    FilterReason,
    GroupState,
    Purpose,
    RolloutState,
)
from orchestrator.course import StageSection
from orchestrator.pool import batches as pool_batches
from orchestrator.pool import history
from orchestrator.pool.course import waiting
from orchestrator.pool.leases import lose
from orchestrator.pool.tables import batches, groups, queue, rollouts


async def filter_open(connection: AsyncConnection, run_id: int) -> int:
    """Void the open batch, cancel open rollouts, filter every open training group; returns how many groups."""
    await history.lock_run(connection, run_id)
    open_batch = await connection.scalar(
        select(batches.c.batch_id).where(batches.c.run_id == run_id, batches.c.state == BatchState.OPEN)
    )
    if open_batch is not None:
        await pool_batches.drop(connection, open_batch, FilterReason.RUN_ENDED)
    rows = (
        await connection.execute(
            select(groups.c.group_id, groups.c.state)
            .where(
                groups.c.run_id == run_id,
                groups.c.purpose == Purpose.TRAIN,
                groups.c.state.in_([GroupState.ACCEPTED, GroupState.DISPATCHED, GroupState.READY]),
            )
            .order_by(groups.c.group_id)
            .with_for_update()
        )
    ).all()
    for row in rows:
        members = await connection.execute(
            select(rollouts.c.rollout_id, rollouts.c.state)
            .where(rollouts.c.group_id == row.group_id, rollouts.c.state.not_in(ROLLOUT_TERMINAL))
            .order_by(rollouts.c.rollout_id)
            .with_for_update()
        )
        for member in members.all():
            await lose(
                connection,
                member.rollout_id,
                RolloutState(member.state),
                None,
                FailureClass.CANCELLED,
                FilterReason.RUN_ENDED,
            )
        await history.move_group(
            connection,
            row.group_id,
            GroupState(row.state),
            GroupState.FILTERED,
            reason=FilterReason.RUN_ENDED,
        )
    return len(rows)


async def filter_passed(connection: AsyncConnection, run_id: int, course: StageSection) -> int:
    """Filter accepted training groups that neither the stage that is on nor a later one takes; returns how many."""
    await history.lock_run(connection, run_id)
    kinds = (await waiting(connection, run_id, course)).passed
    if not kinds:
        return 0
    rows = await connection.execute(
        select(groups.c.group_id)
        .where(
            groups.c.run_id == run_id,
            groups.c.state == GroupState.ACCEPTED,
            tuple_(groups.c.difficulty, groups.c.domain).in_(
                [(kind.difficulty, kind.domain) for kind in kinds]
            ),
        )
        .order_by(groups.c.group_id)
        .with_for_update()
    )
    passed = rows.scalars().all()
    for group_id in passed:
        members = await connection.scalars(
            select(rollouts.c.rollout_id)
            .where(rollouts.c.group_id == group_id, rollouts.c.state == RolloutState.WAITING)
            .order_by(rollouts.c.rollout_id)
            .with_for_update()
        )
        for rollout_id in members.all():
            await lose(
                connection,
                rollout_id,
                RolloutState.WAITING,
                None,
                FailureClass.CANCELLED,
                FilterReason.STAGE_OVER,
            )
        await history.move_group(
            connection, group_id, GroupState.ACCEPTED, GroupState.FILTERED, reason=FilterReason.STAGE_OVER
        )
    return len(passed)


async def nothing_open(connection: AsyncConnection, run_id: int) -> bool:
    """Whether intake is closed and no training group is left to be accepted, run or trained."""
    closed = await connection.scalar(select(~queue.c.intake_open).where(queue.c.run_id == run_id))
    left = await connection.scalar(
        select(func.count()).where(
            groups.c.run_id == run_id, groups.c.purpose == Purpose.TRAIN, ~groups.c.done
        )
    )
    return bool(closed) and not left
