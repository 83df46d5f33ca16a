"""Leases of rollouts: taken, kept alive, expired, retried, lost. Every later write checks the epoch (fencing).

One lease epoch is leased at most once. Expiry and retries raise the epoch, so whatever an old holder still says is refused and counted.
Times are the database's.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import case, func, select, text, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.clock import clock
from orchestrator.contracts.states import FailureClass, RolloutState
from orchestrator.pool import history, resumes
from orchestrator.pool.clean import clean
from orchestrator.pool.columns import among, in_state
from orchestrator.pool.tables import attempts, groups, rollouts, tasks

LEASED = (RolloutState.RUNNING, RolloutState.REPORTED, RolloutState.VERIFYING)  # the states that have a lease


@dataclass(frozen=True, slots=True)
class Lease:
    """What a holder needs to do its work, and the epoch that fences it. `body` is the packed task."""

    run_id: int
    rollout_id: int
    group_id: int
    member: int
    attempt: int
    epoch: int
    seed: int
    purpose: str
    scaffold: str
    pinned_version: int | None
    domain: str
    task_name: str
    body: dict[str, Any]
    label: str | None = None  # the evaluation or recording that its group belongs to
    sampling: dict[str, float] = field(default_factory=dict)  # overrides of the run's sampling parameters
    stage: int = 0  # number of the one that its group was dispatched in


async def lease(
    connection: AsyncConnection,
    rollout_id: int,
    epoch: int,
    owner: str,
    ttl_s: float,
    *,
    before: RolloutState = RolloutState.QUEUED,
) -> Lease | None:
    """Take the lease of `epoch` (QUEUED → RUNNING, or FINISHED → VERIFYING); None when it is stale or taken."""
    after = RolloutState.RUNNING if before is RolloutState.QUEUED else RolloutState.VERIFYING
    until = func.clock_timestamp() + timedelta(seconds=ttl_s)
    if not await history.move_rollout(
        connection,
        rollout_id,
        before,
        after,
        epoch=epoch,
        values={"lease_owner": owner, "lease_until": until},
    ):
        return None
    row = (
        await connection.execute(
            select(
                rollouts.c.run_id,
                rollouts.c.rollout_id,
                rollouts.c.group_id,
                rollouts.c.member,
                rollouts.c.attempt,
                rollouts.c.seed,
                groups.c.purpose,
                groups.c.scaffold,
                groups.c.pinned_version,
                groups.c.domain,
                groups.c.label,
                groups.c.sampling,
                tasks.c.name,
                tasks.c.body,
                groups.c.stage,
            )
            .join(groups, groups.c.group_id == rollouts.c.group_id)
            .join(tasks, tasks.c.task_id == groups.c.task_id)
            .where(rollouts.c.rollout_id == rollout_id)
        )
    ).one()
    if after is RolloutState.RUNNING:
        await connection.execute(
            insert(attempts)
            .values(
                run_id=row.run_id,
                rollout_id=rollout_id,
                attempt=row.attempt,
                epoch=epoch,
                runner=owner,
                scaffold=row.scaffold,
            )
            .on_conflict_do_update(
                index_elements=["rollout_id", "attempt"], set_={"epoch": epoch, "runner": owner}
            )
        )
    return Lease(
        row.run_id, rollout_id, row.group_id, row.member, row.attempt, epoch, row.seed, row.purpose, row.scaffold,
        row.pinned_version, row.domain, row.name, row.body, row.label, row.sampling or {},
        row.stage or 0,
    )  # fmt: skip


async def heartbeat(
    connection: AsyncConnection, owner: str, epochs: dict[int, int], ttl_s: float
) -> set[int]:
    """Extend the leases {rollout_id: epoch} of `owner`; returns those that are still held. The others are lost: stop their work."""
    if not epochs:
        return set()
    rows = await connection.execute(
        text(
            "WITH held AS (SELECT r.rollout_id FROM rollouts r "
            "JOIN unnest(CAST(:ids AS bigint[]), CAST(:epochs AS int[])) AS k(id, epoch) "
            "ON r.rollout_id = k.id AND r.lease_epoch = k.epoch "
            "WHERE r.lease_owner = :owner AND r.state IN ('running', 'verifying') "
            "ORDER BY r.rollout_id FOR UPDATE OF r) "
            "UPDATE rollouts r SET lease_until = clock_timestamp() + make_interval(secs => :ttl) "
            "FROM held WHERE r.rollout_id = held.rollout_id RETURNING r.rollout_id"
        ),
        {"ttl": ttl_s, "ids": list(epochs), "epochs": list(epochs.values()), "owner": owner},
    )
    return {row.rollout_id for row in rows}


async def give_back(connection: AsyncConnection, owner: str, epochs: dict[int, int]) -> int:
    """End the leases {rollout_id: epoch} of an `owner` that stops: they have run out, and the reaper need not wait. Returns how many.

    The attempts under them are cancelled, which is nobody's failure.
    """
    rows = await connection.execute(
        text(
            "WITH held AS (SELECT r.rollout_id, r.attempt, r.state FROM rollouts r "
            "JOIN unnest(CAST(:ids AS bigint[]), CAST(:epochs AS int[])) AS k(id, epoch) "
            "ON r.rollout_id = k.id AND r.lease_epoch = k.epoch "
            "WHERE r.lease_owner = :owner AND r.state IN ('running', 'verifying') "
            "ORDER BY r.rollout_id FOR UPDATE OF r), "
            "cancelled AS (UPDATE attempts a SET ended = clock_timestamp(), failure_class = 'cancelled', reason = 'the runner gave it back' "
            "FROM held WHERE held.state = 'running' AND a.rollout_id = held.rollout_id AND a.attempt = held.attempt) "
            "UPDATE rollouts r SET lease_until = clock_timestamp(), lease_owner = NULL "
            "FROM held WHERE r.rollout_id = held.rollout_id RETURNING r.rollout_id"
        ),
        {"ids": list(epochs), "epochs": list(epochs.values()), "owner": owner},
    )
    return len(rows.all())


async def failures(connection: AsyncConnection, rollout_id: int) -> int:
    """How many attempts of a rollout failed; those that a stopping runner gave back did not."""
    failed = attempts.c.failure_class.is_distinct_from(FailureClass.CANCELLED)
    query = select(func.count()).where(attempts.c.rollout_id == rollout_id, failed)
    return int(await connection.scalar(query) or 0)


async def retry(
    connection: AsyncConnection,
    rollout_id: int,
    before: RolloutState,
    epoch: int,
    *,
    reason: str,
    delay_s: float,
) -> tuple[int, int] | None:
    """Back to QUEUED as a new attempt with a new epoch: (attempt, epoch), or None when the race was lost."""
    new_epoch = epoch + 1
    moved = await history.move_rollout(
        connection,
        rollout_id,
        before,
        RolloutState.QUEUED,
        epoch=epoch,
        reason=reason,
        values={
            "attempt": rollouts.c.attempt + 1,
            "lease_epoch": new_epoch,
            "lease_owner": None,
            "lease_until": None,
            "not_before": func.clock_timestamp() + timedelta(seconds=delay_s),
        },
    )
    if not moved:
        return None
    attempt = await connection.scalar(select(rollouts.c.attempt).where(rollouts.c.rollout_id == rollout_id))
    assert attempt is not None
    await _end_attempt(connection, rollout_id, attempt - 1, FailureClass.INFRA_FAILURE, reason)
    await resumes.interrupted(connection, rollout_id)
    return attempt, new_epoch


async def lose(
    connection: AsyncConnection,
    rollout_id: int,
    before: RolloutState,
    epoch: int | None,
    failure: FailureClass,
    reason: str,
) -> bool:
    """End a rollout without a verdict: it leaves baseline and batch."""
    moved = await history.move_rollout(
        connection,
        rollout_id,
        before,
        RolloutState.LOST,
        epoch=epoch,
        reason=reason,
        values={"failure_class": failure, "reason": clean(reason), "lease_owner": None, "lease_until": None},
    )
    if moved:
        own = FailureClass.CANCELLED if failure is FailureClass.CANCELLED else FailureClass.INFRA_FAILURE
        await _end_attempt(connection, rollout_id, None, own, reason)
        await resumes.interrupted(connection, rollout_id)
    return moved


async def cancel_members(connection: AsyncConnection, group_ids: Sequence[int], reason: str) -> None:
    """`lose`, as cancelled, every open rollout of several groups that are locked."""
    values = {
        "failure_class": FailureClass.CANCELLED,
        "reason": clean(reason),
        "lease_owner": None,
        "lease_until": None,
    }
    moved = await history.end_members(connection, group_ids, RolloutState.LOST, reason=reason, values=values)
    if not moved:
        return
    await connection.execute(
        attempts.update()
        .where(among(attempts.c.rollout_id, moved), attempts.c.ended.is_(None))
        .values(ended=func.clock_timestamp(), failure_class=FailureClass.CANCELLED, reason=clean(reason))
    )
    await resumes.interrupted(connection, *moved)


async def _end_attempt(
    connection: AsyncConnection, rollout_id: int, attempt: int | None, failure: FailureClass, reason: str
) -> None:
    """What reported nothing has ended as well, and why: `attempt`, or whichever is open. One that reported keeps its own word."""
    statement = (
        attempts.update()
        .where(attempts.c.rollout_id == rollout_id, attempts.c.ended.is_(None))
        .values(ended=func.clock_timestamp(), failure_class=failure, reason=clean(reason))
    )
    if attempt is not None:
        statement = statement.where(attempts.c.attempt == attempt)
    await connection.execute(statement)


@dataclass(frozen=True, slots=True)
class Expired:
    """A lease that ran out, or was given back before its time."""

    run_id: int
    rollout_id: int
    attempt: int
    epoch: int
    state: RolloutState
    given_back: bool


async def expired(
    connection: AsyncConnection,
    run_id: int,
    limit: int = 100,
    *,
    states: Collection[RolloutState] = LEASED,
) -> list[Expired]:
    """Lock leases of `states` that have run out, skipping what another reaper holds."""
    rows = await connection.execute(
        select(
            rollouts.c.run_id,
            rollouts.c.rollout_id,
            rollouts.c.attempt,
            rollouts.c.lease_epoch,
            rollouts.c.lease_owner,
            rollouts.c.state,
        )
        .where(
            rollouts.c.run_id == run_id,
            in_state(rollouts.c.state, *states),
            rollouts.c.lease_until < func.clock_timestamp(),
        )
        .order_by(rollouts.c.rollout_id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [
        Expired(
            row.run_id, row.rollout_id, row.attempt, row.lease_epoch, RolloutState(row.state),
            given_back=row.lease_owner is None and row.state != RolloutState.REPORTED,
        )
        for row in rows
    ]  # fmt: skip


async def grace(
    connection: AsyncConnection,
    run_id: int,
    ttl_s: float,
    *,
    states: Collection[RolloutState] = LEASED,
    again: bool = False,
) -> None:
    """Give every lease of `states` at least one full time to live: its holder could not renew while Postgres, or the reaper, was away. What a
    reported rollout waits for may have been kept back by the bus: it gets its full time to arrive.

    Once until its owner renews it, whoever gave it: `graced_until` remembers the end that was given, and whatever else sets an end sets
    another one. So neither an orchestrator that begins again and again nor several of them keep a dead holder's lease alive. One that was
    given back has no holder. `again`: not only once, for what has no owner who could renew it, but waits for the bus.
    """
    now, reported = func.clock_timestamp(), rollouts.c.state == RolloutState.REPORTED
    full, arrived = timedelta(seconds=ttl_s), timedelta(seconds=max(ttl_s, clock().arrival_s))
    length = case((reported, arrived), else_=full)
    short = (
        select(rollouts.c.rollout_id, length.label("length"))
        .where(
            rollouts.c.run_id == run_id,
            in_state(rollouts.c.state, *states),
            rollouts.c.lease_until < now + length,
            true() if again else rollouts.c.graced_until.is_distinct_from(rollouts.c.lease_until),
            rollouts.c.lease_owner.is_not(None) | reported,
        )
        .order_by(rollouts.c.rollout_id)
        .with_for_update()
        .cte("short")
    )
    # One reading of the clock for both columns, and after the wait for the lock.
    given = (
        select(short.c.rollout_id, (now + short.c.length).label("until"))
        .cte("given")
        .prefix_with("MATERIALIZED")
    )
    await connection.execute(
        update(rollouts)
        .where(rollouts.c.rollout_id == given.c.rollout_id)
        .values(lease_until=given.c.until, graced_until=given.c.until)
    )


async def group_of(connection: AsyncConnection, rollout_id: int) -> int:
    """The group that a rollout belongs to."""
    return int(
        await connection.scalar(select(rollouts.c.group_id).where(rollouts.c.rollout_id == rollout_id)) or 0
    )


async def pool_of(connection: AsyncConnection, rollout_id: int) -> str:
    """The pool of runners that a rollout is assigned to."""
    return str(await connection.scalar(select(rollouts.c.pool).where(rollouts.c.rollout_id == rollout_id)))


async def purpose_of(connection: AsyncConnection, rollout_id: int) -> str:
    """The purpose that a rollout inherits from its group."""
    return str(
        await connection.scalar(
            select(groups.c.purpose)
            .join(rollouts, rollouts.c.group_id == groups.c.group_id)
            .where(rollouts.c.rollout_id == rollout_id)
        )
    )
