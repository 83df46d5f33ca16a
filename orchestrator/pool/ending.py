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
from orchestrator.pool.course import stage_number, waiting
from orchestrator.pool.leases import lose
from orchestrator.pool.tables import batches, groups, queue, rollouts

ALL_TERMINAL = "intake is closed and every group is terminal"


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


async def nothing_left(connection: AsyncConnection, run_id: int, course: StageSection) -> str | None:
    """Why the run trains nothing more, or None: intake is closed, and no training group is left, or none of the stage that is on."""
    closed = await connection.scalar(select(~queue.c.intake_open).where(queue.c.run_id == run_id))
    if course.then:
        return await _ran_out(connection, run_id, course) if closed else None
    left = await connection.scalar(
        select(func.count()).where(
            groups.c.run_id == run_id, groups.c.purpose == Purpose.TRAIN, ~groups.c.done
        )
    )
    return ALL_TERMINAL if closed and not left else None


async def _ran_out(connection: AsyncConnection, run_id: int, course: StageSection) -> str | None:
    """`nothing_left` of several stages. Nothing is locked: with intake closed and nothing of the stage waiting, only the next stage's beginning
    brings something under way, so the order of these looks tells."""
    found = await waiting(connection, run_id, course)
    if found.present or found.passed:
        return None
    dispatched = groups.c.seq.is_not(None)
    under_way = select(groups.c.group_id).where(groups.c.run_id == run_id, dispatched, ~groups.c.done)
    if await connection.scalar(under_way.limit(1)) is not None:
        return None
    if await stage_number(connection, run_id, course) != found.number:
        return None
    if not found.later:
        return ALL_TERMINAL
    stage = course.all[found.number]
    return f"intake is closed and stage {stage.name!r} ran out of tasks before batch {stage.end_batches} of its own"
