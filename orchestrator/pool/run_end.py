"""The end of a run: open groups become filtered(run_ended); groups in a closed batch are left to be committed."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.states import GROUP_TERMINAL, BatchState, FilterReason, GroupState, Purpose
from orchestrator.pool import batches as pool_batches
from orchestrator.pool import transitions
from orchestrator.pool.columns import among, in_state
from orchestrator.pool.curriculum import stage_number, waiting
from orchestrator.pool.leases import cancel_members
from orchestrator.pool.tables import batches, groups, queue
from orchestrator.settings.curriculum import StageSection

STEP = 100
"""Groups that one transaction filters: between two transactions the queue row is free for dispatches, claims and commits."""
OPEN = (GroupState.ACCEPTED, GroupState.DISPATCHED, GroupState.READY)
ALL_TERMINAL = "intake is closed and every group is terminal"


async def filter_open(connection: AsyncConnection, run_id: int) -> int:
    """Void the open batch, cancel the open rollouts of at most `STEP` open training groups and filter these groups. Returns how many groups. Call
    it in its own transaction until it returns 0."""
    await transitions.lock_run(connection, run_id)
    open_batch = await connection.scalar(
        select(batches.c.batch_id).where(batches.c.run_id == run_id, batches.c.state == BatchState.OPEN)
    )
    if open_batch is not None:
        await pool_batches.drop(connection, open_batch, FilterReason.RUN_ENDED)
    found = await connection.scalars(
        select(groups.c.group_id)
        .where(
            groups.c.run_id == run_id,
            groups.c.purpose == Purpose.TRAIN,
            groups.c.state.in_(OPEN),
            ~groups.c.done,
        )
        .order_by(groups.c.seq)  # the order of groups_open
        .limit(STEP)
    )
    return await _filter(connection, found.all(), FilterReason.RUN_ENDED)


async def cancel_group(connection: AsyncConnection, run_id: int, group_id: int) -> GroupState:
    """Filter one open group of any purpose, and cancel its open rollouts. Returns its previous state. ConfigurationError if that is not
    possible: it is over, or in a batch, whose digest includes it."""
    await transitions.lock_run(connection, run_id)
    row = (
        await connection.execute(
            select(groups.c.state)
            .where(groups.c.run_id == run_id, groups.c.group_id == group_id)
            .with_for_update()
        )
    ).first()
    if row is None:
        raise ConfigurationError(f"group {group_id} does not exist in this run")
    state = GroupState(row.state)
    if state in GROUP_TERMINAL:
        raise ConfigurationError(f"group {group_id} is over: it is {state}")
    if not await _filter(connection, [group_id], FilterReason.CANCELLED):
        raise ConfigurationError(f"group {group_id} is {state}: a batch has taken it, and trains it now")
    return state


async def filter_passed(connection: AsyncConnection, run_id: int, stages: StageSection) -> int:
    """Filter at most `STEP` accepted training groups that neither the current stage nor a later stage takes. Returns how many. Call it
    in its own transaction until it returns 0. Nothing is locked if there are none."""
    if not await _passed(connection, run_id, stages):
        return 0
    await transitions.lock_run(connection, run_id)
    return await _filter(connection, await _passed(connection, run_id, stages), FilterReason.STAGE_OVER)


async def _passed(connection: AsyncConnection, run_id: int, stages: StageSection) -> Sequence[int]:
    """The oldest groups of one kind."""
    kinds = (await waiting(connection, run_id, stages)).passed
    if not kinds:
        return []
    found = await connection.scalars(
        select(groups.c.group_id)
        .where(
            groups.c.run_id == run_id,
            in_state(groups.c.state, GroupState.ACCEPTED),
            groups.c.difficulty == kinds[0].difficulty,
            groups.c.domain == kinds[0].domain,
        )
        .order_by(groups.c.group_id)
        .limit(STEP)
    )
    return found.all()


async def _filter(connection: AsyncConnection, group_ids: Sequence[int], reason: FilterReason) -> int:
    """Filter the open groups among these, and cancel their open rollouts. Returns how many groups. The queue row must be locked."""
    rows = await connection.execute(
        select(groups.c.group_id, groups.c.state)
        .where(among(groups.c.group_id, group_ids), groups.c.state.in_(OPEN))
        .order_by(groups.c.group_id)
        .with_for_update()
    )
    by_state: dict[GroupState, list[int]] = {state: [] for state in OPEN}
    for row in rows:
        by_state[GroupState(row.state)].append(row.group_id)
    await cancel_members(connection, [rollout_id for ids in by_state.values() for rollout_id in ids], reason)
    changed = [
        await transitions.move_groups(connection, ids, state, GroupState.FILTERED, reason=reason)
        for state, ids in by_state.items()
        if ids
    ]
    return sum(changed)


async def nothing_left(connection: AsyncConnection, run_id: int, stages: StageSection) -> str | None:
    """Why the run trains nothing more, or None. Intake must be closed, with no training group left, or none of the current stage."""
    closed = await connection.scalar(select(~queue.c.intake_open).where(queue.c.run_id == run_id))
    if stages.then:
        return await _ran_out(connection, run_id, stages) if closed else None
    unfinished = await connection.scalar(
        select(func.count()).where(
            groups.c.run_id == run_id, groups.c.purpose == Purpose.TRAIN, ~groups.c.done
        )
    )
    return ALL_TERMINAL if closed and not unfinished else None


async def _ran_out(connection: AsyncConnection, run_id: int, stages: StageSection) -> str | None:
    """`nothing_left` for several stages. Nothing is locked: with intake closed and nothing of the stage waiting, only the start of the next stage
    can dispatch anything, so the order of these reads is sufficient."""
    found = await waiting(connection, run_id, stages)
    if found.present or found.passed:
        return None
    dispatched = groups.c.seq.is_not(None)
    dispatched_groups = select(groups.c.group_id).where(groups.c.run_id == run_id, dispatched, ~groups.c.done)
    if await connection.scalar(dispatched_groups.limit(1)) is not None:
        return None
    if await stage_number(connection, run_id, stages) != found.number:
        return None
    if not found.later:
        return ALL_TERMINAL
    stage = stages.all[found.number]
    return f"intake is closed and stage {stage.name!r} ran out of tasks before batch {stage.end_batches} of its own"
