"""Batches: claimed in windowed-FIFO order, committed once, voided by a rewind.

Taking is idempotent and durable: each take is a row and moves the window. After a crash the same batch_no is the same batch with the same
digest. Commit writes batch, groups, policy version, metrics and outbox in one transaction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Row, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.events import PolicyPublished
from orchestrator.contracts.ids import sha256
from orchestrator.contracts.states import (
    BatchState,
    Entity,
    FilterReason,
    GroupState,
    Purpose,
    RolloutState,
    RunState,
)
from orchestrator.pool import curriculum, transitions
from orchestrator.pool.columns import among, in_state
from orchestrator.pool.outbox import enqueue
from orchestrator.pool.policy_versions import committed
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.sanitize import clean
from orchestrator.pool.tables import (
    batch_items,
    batch_rollouts,
    batches,
    groups,
    policy_versions,
    queue,
    rewards,
    rollouts,
    runs,
    train_steps,
)
from orchestrator.pool.trainer_logprobs import TrainedStep, write_trainer_logprobs
from orchestrator.scheduling.batching import BatchAction, batch_action
from orchestrator.scheduling.queue_policies import QueuePolicy
from orchestrator.scheduling.window import QueueRow, floor_after
from orchestrator.settings.curriculum import StageSection


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBatch:
    """A live batch. `taken` groups are in it; `digest` fixes a closed batch."""

    batch_id: int
    batch_no: int
    state: BatchState
    taken: int
    digest: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRollout:
    """One rollout to train, with its pinned reward: advantages are float per step, weight 0 = not trained."""

    group_id: int
    seq: int
    domain: str
    rollout_id: int
    attempt: int
    reward_revision: int
    performance: float
    total: float
    advantages: Sequence[float]
    weights: Sequence[int]


async def _live(connection: AsyncConnection, run_id: int) -> LiveBatch | None:
    """The newest batch that is neither committed nor voided."""
    row = (
        await connection.execute(
            select(batches)
            .where(batches.c.run_id == run_id, batches.c.state.in_([BatchState.OPEN, BatchState.CLOSED]))
            .order_by(batches.c.batch_no)
            .limit(1)
        )
    ).first()
    if row is None:
        return None
    taken_groups = await connection.scalar(
        select(func.count()).where(batch_items.c.batch_id == row.batch_id, ~batch_items.c.voided)
    )
    return from_wide_row(LiveBatch, row, taken=int(taken_groups or 0))


async def take(
    connection: AsyncConnection,
    run_id: int,
    policy: QueuePolicy,
    batch_groups: int,
    short_batch: int,
    stages: StageSection | None = None,
) -> LiveBatch | None:
    """Advance the run's live batch as far as the window allows, and return it; None if no batch can ever fill again.

    `stages`: the stages of the run, so that groups that wait for a later stage do not keep a batch open.

    A closed batch is returned unchanged: every call returns the same batch with the same digest.
    """
    row = (await connection.execute(select(queue).where(queue.c.run_id == run_id).with_for_update())).one()
    batch = await _live(connection, run_id)
    if batch is not None and batch.state is BatchState.CLOSED:
        return batch
    state = await connection.scalar(select(runs.c.state).where(runs.c.run_id == run_id))
    if state != RunState.ACTIVE:
        return None
    waiting = await _waiting(connection, run_id, stages)
    if batch is None and not waiting and not row.intake_open:
        return None
    if batch is None:
        batch = await _open(connection, run_id)
    missing = batch_groups - batch.taken
    rows = await _open_groups(connection, run_id, row.floor_seq, policy.rows_needed(missing))
    open_rows = [QueueRow(r.seq, GroupState(r.state), r.domain) for r in rows]
    group_of_seq = {r.seq: r.group_id for r in rows}
    chosen = policy.takeable(open_rows, missing)
    if chosen:
        batch = await _take_groups(connection, batch, [group_of_seq[seq] for seq in chosen])
    floor = floor_after(open_rows, chosen)
    if floor is not None and floor > row.floor_seq:
        await connection.execute(update(queue).where(queue.c.run_id == run_id).values(floor_seq=floor))
    action = batch_action(
        batch.taken,
        batch_groups,
        short_batch,
        intake_closed=not row.intake_open,
        in_flight=waiting - len(chosen),
    )
    match action:
        case BatchAction.CLOSE | BatchAction.CLOSE_SHORT:
            return await _close(connection, batch)
        case BatchAction.RUN_ENDED:
            await drop(connection, batch.batch_id, FilterReason.RUN_ENDED)
            return None
    return batch


async def _open_groups(
    connection: AsyncConnection, run_id: int, floor_seq: int, most: int | None
) -> list[Row[Any]]:
    """The groups of the queue from `floor_seq` on that no batch has, in order; `most` at most, None for all."""
    query = (
        select(groups.c.seq, groups.c.state, groups.c.group_id, groups.c.domain)
        .where(
            groups.c.run_id == run_id,
            groups.c.seq >= floor_seq,
            groups.c.state.in_([GroupState.DISPATCHED, GroupState.READY]),
            ~groups.c.done,
        )
        .order_by(groups.c.seq)
        .limit(most)
    )
    return list(await connection.execute(query))


async def _waiting(connection: AsyncConnection, run_id: int, stages: StageSection | None) -> int:
    """Training groups that may still be taken: dispatched and ready groups, and accepted groups as one, however many wait. In a run of several
    stages only accepted groups of the current stage count, as one per kind."""
    if stages is not None and stages.then:
        accepted = len((await curriculum.waiting(connection, run_id, stages)).present)
    else:
        waits = select(groups.c.group_id).where(
            groups.c.run_id == run_id,
            in_state(groups.c.state, GroupState.ACCEPTED),
            groups.c.purpose == Purpose.TRAIN,
        )
        accepted = int(bool(await connection.scalar(select(waits.exists()))))
    dispatched = await connection.scalar(
        select(func.count()).where(
            groups.c.run_id == run_id,
            # The part of groups_open that is not accepted; only training groups have a position.
            groups.c.seq.is_not(None),
            groups.c.state.in_([GroupState.DISPATCHED, GroupState.READY]),
            ~groups.c.done,  # follows from the states, but the planner cannot infer it: it uses groups_open instead of scanning all groups
        )
    )
    return int(dispatched or 0) + accepted


async def _open(connection: AsyncConnection, run_id: int) -> LiveBatch:
    last = await connection.scalar(
        select(func.max(batches.c.batch_no)).where(
            batches.c.run_id == run_id, batches.c.state != BatchState.VOIDED
        )
    )
    number = 0 if last is None else last + 1
    batch_id = await connection.scalar(
        insert(batches).values(run_id=run_id, batch_no=number, size=0).returning(batches.c.batch_id)
    )
    assert batch_id is not None
    await transitions.record_created(connection, run_id, Entity.BATCH, batch_id, BatchState.OPEN)
    return LiveBatch(batch_id=batch_id, batch_no=number, state=BatchState.OPEN, taken=0, digest=None)


async def _take_groups(connection: AsyncConnection, batch: LiveBatch, group_ids: Sequence[int]) -> LiveBatch:
    """Take these groups, in this order: a row for each, with the newest rewards of their rollouts pinned."""
    moved = await transitions.move_groups(connection, group_ids, GroupState.READY, GroupState.TAKEN)
    assert moved == len(group_ids), "the queue row is locked: no other process takes"
    await connection.execute(
        insert(batch_items),
        [
            {"batch_id": batch.batch_id, "pos": batch.taken + n, "group_id": group_id}
            for n, group_id in enumerate(group_ids)
        ],
    )
    newest = (
        select(
            literal(batch.batch_id),
            rollouts.c.group_id,
            rewards.c.rollout_id,
            rewards.c.attempt,
            rewards.c.revision,
            rewards.c.baseline,
            rewards.c.divisor,
            rewards.c.advantage,
        )
        .ext(distinct_on(rewards.c.rollout_id))
        .join(rollouts, rollouts.c.rollout_id == rewards.c.rollout_id)
        .where(
            among(rollouts.c.group_id, group_ids),
            # A rollout that a rescore lost keeps its earlier rewards.
            rollouts.c.state == RolloutState.VERIFIED,
            rewards.c.advantage.is_not(None),
        )
        .order_by(rewards.c.rollout_id, rewards.c.revision.desc())
    )
    pinned = batch_rollouts.c
    await connection.execute(
        insert(batch_rollouts).from_select(
            [
                pinned.batch_id,
                pinned.group_id,
                pinned.rollout_id,
                pinned.attempt,
                pinned.reward_revision,
                pinned.baseline,
                pinned.divisor,
                pinned.advantage,
            ],
            newest,
        )
    )
    return LiveBatch(
        batch_id=batch.batch_id,
        batch_no=batch.batch_no,
        state=batch.state,
        taken=batch.taken + len(group_ids),
        digest=None,
    )


async def _close(connection: AsyncConnection, batch: LiveBatch) -> LiveBatch:
    rows = await connection.execute(
        select(batch_rollouts, rewards.c.per_step)
        .join(
            rewards,
            (rewards.c.rollout_id == batch_rollouts.c.rollout_id)
            & (rewards.c.revision == batch_rollouts.c.reward_revision),
        )
        .where(batch_rollouts.c.batch_id == batch.batch_id)
        .order_by(batch_rollouts.c.group_id, batch_rollouts.c.rollout_id)
    )
    # With what each step trains with. Earlier batches had no such list: the audit knows both forms.
    content = [
        [
            *(r.group_id, r.rollout_id, r.attempt, r.reward_revision, r.baseline, r.divisor, r.advantage),
            [[step["advantage"], step["weight"]] for step in r.per_step],
        ]
        for r in rows
    ]
    digest = sha256(msgspec.json.encode(content))
    moved = await transitions.move_batch(
        connection,
        batch.batch_id,
        BatchState.OPEN,
        BatchState.CLOSED,
        values={"digest": digest, "size": batch.taken, "closed": func.clock_timestamp()},
    )
    assert moved, "the queue row is locked: no other process closes"
    return LiveBatch(
        batch_id=batch.batch_id,
        batch_no=batch.batch_no,
        state=BatchState.CLOSED,
        taken=batch.taken,
        digest=digest,
    )


async def drop(
    connection: AsyncConnection,
    batch_id: int,
    reason: FilterReason,
    before: BatchState = BatchState.OPEN,
    detail: str | None = None,
) -> None:
    """Void a batch in state `before`: its groups become filtered. `detail`: the note in its row. The queue row must be locked."""
    rows = await connection.execute(
        select(batch_items.c.group_id).where(batch_items.c.batch_id == batch_id, ~batch_items.c.voided)
    )
    for group_id in rows.scalars().all():
        await transitions.move_group(
            connection, group_id, GroupState.TAKEN, GroupState.FILTERED, reason=reason
        )
    await connection.execute(
        update(batch_items).where(batch_items.c.batch_id == batch_id).values(voided=True)
    )
    values = {} if detail is None else {"void_detail": clean(detail)}
    await transitions.move_batch(
        connection, batch_id, before, BatchState.VOIDED, reason=reason, values=values
    )


async def closed_batch(connection: AsyncConnection, run_id: int) -> LiveBatch | None:
    """The batch that waits to be trained and committed, or None. Takes nothing."""
    batch = await _live(connection, run_id)
    return batch if batch is not None and batch.state is BatchState.CLOSED else None


async def contents(connection: AsyncConnection, batch_id: int) -> list[BatchRollout]:
    """The rollouts of a closed batch, in (seq, rollout) order, as pinned when its groups were taken."""
    rows = await connection.execute(
        select(
            batch_rollouts,
            groups.c.seq,
            groups.c.domain,
            rewards.c.per_step,
            rewards.c.performance,
            rewards.c.total,
        )
        .join(groups, groups.c.group_id == batch_rollouts.c.group_id)
        .join(
            rewards,
            (rewards.c.rollout_id == batch_rollouts.c.rollout_id)
            & (rewards.c.revision == batch_rollouts.c.reward_revision),
        )
        .where(batch_rollouts.c.batch_id == batch_id)
        .order_by(groups.c.seq, batch_rollouts.c.rollout_id)
    )
    return [
        from_wide_row(
            BatchRollout,
            r,
            advantages=[step["advantage"] for step in r.per_step],
            weights=[step["weight"] for step in r.per_step],
        )
        for r in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """Published weights: their path and the hash of their manifest."""

    version: int
    parent: int | None
    path: str
    manifest_sha: str


async def publish(
    connection: AsyncConnection, run_id: int, run: str, new: NewVersion, subject: str, batch_no: int | None
) -> None:
    """Insert a policy version and queue its announcement in the outbox."""
    await connection.execute(
        insert(policy_versions).values(
            run_id=run_id,
            version=new.version,
            parent=new.parent,
            batch_no=batch_no,
            path=new.path,
            manifest_sha=new.manifest_sha,
        )
    )
    event = PolicyPublished(
        run=run,
        version=new.version,
        path=new.path,
        manifest_sha=new.manifest_sha,
        batch_no=batch_no,
        revision=new.version,
    )
    await enqueue(connection, run_id, subject, event, revision=new.version)


async def commit(
    connection: AsyncConnection,
    run_id: int,
    run: str,
    *,
    batch: LiveBatch,
    new: NewVersion,
    metrics: Sequence[Mapping[str, Any]],
    subject: str,
    trained: Sequence[TrainedStep] = (),
) -> bool:
    """CLOSED → COMMITTED with all its effects. False if it is committed already (a replayed commit). `trained`: the trainer logprobs of its
    steps, if they are kept: the largest part of the commit, and the only part that no other process waits for."""
    await write_trainer_logprobs(connection, run_id, batch.batch_id, trained)
    await transitions.lock_run(connection, run_id)
    rows = await connection.execute(
        select(batch_items.c.group_id)
        .where(batch_items.c.batch_id == batch.batch_id, ~batch_items.c.voided)
        .order_by(batch_items.c.group_id)
    )
    group_ids = rows.scalars().all()
    totals = await committed(connection, run_id)
    moved = await transitions.move_batch(
        connection,
        batch.batch_id,
        BatchState.CLOSED,
        BatchState.COMMITTED,
        values={
            "version": new.version,
            "committed": func.clock_timestamp(),
            "groups_so_far": totals.groups + len(group_ids),
        },
    )
    if not moved:
        return False
    group_count = await transitions.move_groups(connection, group_ids, GroupState.TAKEN, GroupState.TRAINED)
    assert group_count == len(group_ids), "a group of a closed batch is taken"
    first = await connection.scalar(
        select(func.coalesce(func.max(train_steps.c.train_step), 0)).where(train_steps.c.run_id == run_id)
    )
    await connection.execute(
        insert(train_steps),
        [
            {
                "run_id": run_id,
                "train_step": int(first or 0) + part + 1,
                "batch_id": batch.batch_id,
                "part": part,
                "metrics": dict(values),
            }
            for part, values in enumerate(metrics)
        ],
    )
    await publish(connection, run_id, run, new, subject, batch.batch_no)
    return True
