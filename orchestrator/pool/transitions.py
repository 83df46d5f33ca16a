"""State changes: compare-and-set on the from-state with a history row in the same transaction. Zero rows = lost race = no-op.

Lock order, everywhere: queue row → group rows by id → rollout rows by id. Every transaction that may end a group therefore starts with `lock_run`,
and the history of a run's queue is in commit order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import (
    ROLLOUT_TERMINAL,
    BatchState,
    Entity,
    GroupState,
    RolloutState,
    RunState,
    check,
)
from orchestrator.pool.columns import among
from orchestrator.pool.counter_names import NAMES
from orchestrator.pool.sanitize import clean
from orchestrator.pool.tables import batches, counters, groups, queue, rollouts, transitions


async def lock_run(connection: AsyncConnection, run_id: int) -> None:
    """Lock the run's queue row until the end of the transaction."""
    await connection.execute(select(queue.c.run_id).where(queue.c.run_id == run_id).with_for_update())


async def hold_run(connection: AsyncConnection, run_id: int) -> None:
    """Prevent `lock_run` in other transactions until the end of this one. Several transactions may hold it at once."""
    await connection.execute(
        select(queue.c.run_id).where(queue.c.run_id == run_id).with_for_update(read=True)
    )


async def _record(
    connection: AsyncConnection,
    *,
    run_id: int,
    kind: Entity,
    entity_id: int,
    before: str | None,
    after: str,
    seq: int | None = None,
    epoch: int | None = None,
    reason: str | None = None,
) -> None:
    await connection.execute(
        insert(transitions).values(
            run_id=run_id,
            kind=kind,
            entity_id=entity_id,
            seq=seq,
            from_state=before,
            to_state=after,
            epoch=epoch,
            reason=clean(reason) if reason is not None else None,
        )
    )


async def record_created(
    connection: AsyncConnection, run_id: int, kind: Entity, entity_id: int, state: str, **details: Any
) -> None:
    """Write the first history row of an entity that this transaction inserted."""
    await _record(
        connection, run_id=run_id, kind=kind, entity_id=entity_id, before=None, after=state, **details
    )


async def record_all_created(
    connection: AsyncConnection, run_id: int, kind: Entity, entity_ids: Sequence[int], state: str
) -> None:
    """`record_created` for several entities."""
    await connection.execute(
        insert(transitions),
        [{"run_id": run_id, "kind": kind, "entity_id": id, "to_state": state} for id in entity_ids],
    )


async def move_group(
    connection: AsyncConnection,
    group_id: int,
    before: GroupState,
    after: GroupState,
    *,
    reason: str | None = None,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Move a group, or return False if it is no longer in `before`. Terminal states set `ended`."""
    check(before, after)
    stamps = _stamps(before, after) | dict(values or {})
    if reason is not None:
        stamps["reason"] = clean(reason)
    row = (
        await connection.execute(
            update(groups)
            .where(groups.c.group_id == group_id, groups.c.state == before)
            .values(state=after, **stamps)
            .returning(groups.c.run_id, groups.c.seq)
        )
    ).first()
    if row is None:
        return False
    await _record(
        connection,
        run_id=row.run_id,
        kind=Entity.GROUP,
        entity_id=group_id,
        seq=row.seq,
        before=before,
        after=after,
        reason=reason,
    )
    return True


async def move_groups(
    connection: AsyncConnection,
    group_ids: Sequence[int],
    before: GroupState,
    after: GroupState,
    *,
    reason: str | None = None,
) -> int:
    """`move_group` for those of several groups that are in `before`. Returns how many moved. Their history is in the given order."""
    check(before, after)
    stamps = _stamps(before, after)
    if reason is not None:
        stamps["reason"] = clean(reason)
    locked = (
        select(groups.c.group_id)
        .where(among(groups.c.group_id, group_ids), groups.c.state == before)
        .order_by(groups.c.group_id)
        .with_for_update()
        .cte("wanted")
    )
    rows = await connection.execute(
        update(groups)
        .where(groups.c.group_id == locked.c.group_id)
        .values(state=after, **stamps)
        .returning(groups.c.group_id, groups.c.run_id, groups.c.seq)
    )
    moved = {row.group_id: row for row in rows}
    if moved:
        await connection.execute(
            insert(transitions),
            [
                {
                    "run_id": row.run_id,
                    "kind": Entity.GROUP,
                    "entity_id": row.group_id,
                    "seq": row.seq,
                    "from_state": before,
                    "to_state": after,
                    "reason": stamps.get("reason"),
                }
                for row in (moved[group_id] for group_id in group_ids if group_id in moved)
            ],
        )
    return len(moved)


def _stamps(before: GroupState, after: GroupState) -> dict[str, Any]:
    """The time columns that a group's new state sets."""
    match after:
        case GroupState.DISPATCHED if before is GroupState.ACCEPTED:
            return {"dispatched": func.clock_timestamp()}
        case GroupState.READY:
            # A group that a batch gives back stays ready since its last member was verified.
            again = before in (GroupState.TAKEN, GroupState.TRAINED)
            return {"ended": None} if again else {"ready": func.clock_timestamp(), "ended": None}
        case GroupState.TRAINED | GroupState.SCORED | GroupState.FILTERED | GroupState.DEAD:
            return {"ended": func.clock_timestamp()}
    return {}


async def move_rollout(
    connection: AsyncConnection,
    rollout_id: int,
    before: RolloutState,
    after: RolloutState,
    *,
    run_id: int | None = None,
    attempt: int | None = None,
    epoch: int | None = None,
    reason: str | None = None,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Move a rollout if it is still in `before`; False = lost race or stale epoch.

    `run_id`, `attempt` and `epoch`, if given, must match the row: the claims of a message about itself are conditions.
    """
    check(before, after)
    condition = (rollouts.c.rollout_id == rollout_id) & (rollouts.c.state == before)
    for column, value in (
        (rollouts.c.run_id, run_id),
        (rollouts.c.attempt, attempt),
        (rollouts.c.lease_epoch, epoch),
    ):
        if value is not None:
            condition &= column == value
    row = (
        await connection.execute(
            update(rollouts)
            .where(condition)
            .values(state=after, changed=func.clock_timestamp(), **(values or {}))
            .returning(rollouts.c.run_id, rollouts.c.lease_epoch)
        )
    ).first()
    if row is None:
        return False
    await _record(
        connection,
        run_id=row.run_id,
        kind=Entity.ROLLOUT,
        entity_id=rollout_id,
        before=before,
        after=after,
        epoch=row.lease_epoch,
        reason=reason,
    )
    return True


async def move_rollouts(
    connection: AsyncConnection, group_id: int, before: RolloutState, after: RolloutState, *, epoch: int
) -> Sequence[Row[Any]]:
    """Move every member of a locked group that is in `before`, with a new lease epoch. Returns the moved rows, by id."""
    check(before, after)
    members = (
        select(rollouts.c.rollout_id)
        .where(rollouts.c.group_id == group_id, rollouts.c.state == before)
        .order_by(rollouts.c.rollout_id)
        .with_for_update()
        .cte("members")
    )
    moved = (
        await connection.execute(
            update(rollouts)
            .where(rollouts.c.rollout_id == members.c.rollout_id)
            .values(state=after, lease_epoch=epoch, changed=func.clock_timestamp())
            .returning(rollouts)
        )
    ).all()
    if moved:
        await connection.execute(
            insert(transitions),
            [
                {
                    "run_id": row.run_id,
                    "kind": Entity.ROLLOUT,
                    "entity_id": row.rollout_id,
                    "from_state": before,
                    "to_state": after,
                    "epoch": epoch,
                }
                for row in moved
            ],
        )
    return sorted(moved, key=lambda row: int(row.rollout_id))


async def end_members(
    connection: AsyncConnection,
    group_ids: Sequence[int],
    after: RolloutState,
    *,
    reason: str,
    values: Mapping[str, Any],
) -> Sequence[int]:
    """Move every non-terminal member of several locked groups. Returns the ids of the moved members, ascending."""
    found = await connection.execute(
        select(rollouts.c.rollout_id, rollouts.c.run_id, rollouts.c.state, rollouts.c.lease_epoch)
        .where(among(rollouts.c.group_id, group_ids), rollouts.c.state.not_in(ROLLOUT_TERMINAL))
        .order_by(rollouts.c.rollout_id)
        .with_for_update()
    )
    members = found.all()
    if not members:
        return []
    for state in {RolloutState(row.state) for row in members}:
        check(state, after)
    ids = [row.rollout_id for row in members]
    await connection.execute(
        update(rollouts)
        .where(among(rollouts.c.rollout_id, ids))
        .values(state=after, changed=func.clock_timestamp(), **values)
    )
    await connection.execute(
        insert(transitions),
        [
            {
                "run_id": row.run_id,
                "kind": Entity.ROLLOUT,
                "entity_id": row.rollout_id,
                "from_state": row.state,
                "to_state": after,
                "epoch": row.lease_epoch,
                "reason": clean(reason),
            }
            for row in members
        ],
    )
    return ids


async def move_batch(
    connection: AsyncConnection,
    batch_id: int,
    before: BatchState,
    after: BatchState,
    *,
    reason: str | None = None,
    values: Mapping[str, Any] | None = None,
) -> bool:
    """Move a batch, or return False if it is no longer in `before`."""
    check(before, after)
    row = (
        await connection.execute(
            update(batches)
            .where(batches.c.batch_id == batch_id, batches.c.state == before)
            .values(state=after, **(values or {}))
            .returning(batches.c.run_id)
        )
    ).first()
    if row is None:
        return False
    await _record(
        connection,
        run_id=row.run_id,
        kind=Entity.BATCH,
        entity_id=batch_id,
        before=before,
        after=after,
        reason=reason,
    )
    return True


async def moved_run(
    connection: AsyncConnection, run_id: int, before: RunState, after: RunState, reason: str | None
) -> None:
    """Write the history row of a run's own change of state."""
    await _record(
        connection,
        run_id=run_id,
        kind=Entity.RUN,
        entity_id=run_id,
        before=before,
        after=after,
        reason=reason,
    )


async def count(connection: AsyncConnection, run_id: int, name: str, amount: int = 1) -> None:
    """Add to a counter of the run, one of `counter_names.NAMES`: no-ops and refusals are counted, never silent."""
    assert name in NAMES, f"{name!r:.80} is not a counter: name it in orchestrator/pool/counter_names.py"
    await connection.execute(select(func.count_event(run_id, name, amount)))


async def counts(connection: AsyncConnection, run_id: int) -> dict[str, int]:
    """Every named counter of the run."""
    query = select(counters.c.name, counters.c.value).where(counters.c.run_id == run_id)
    return {row.name: row.value for row in await connection.execute(query)}
