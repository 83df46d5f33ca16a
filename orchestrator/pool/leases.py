"""Leases of rollouts: taken, renewed, expired, retried, lost. Every later write checks the epoch (fencing).

An epoch is leased at most once. Expiry and retries raise the epoch, so every later message of an old holder is refused and counted.
Times are from the database's clock.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, case, func, literal_column, select, text, true, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import FailureClass, Purpose, RolloutState
from orchestrator.pool import resumes, transitions
from orchestrator.pool.columns import among, in_state
from orchestrator.pool.rows import from_row, from_wide_row, member
from orchestrator.pool.sanitize import clean
from orchestrator.pool.tables import attempts, groups, outbox, rollouts, tasks
from orchestrator.settings.timeouts import timeouts

LEASED = (RolloutState.RUNNING, RolloutState.REPORTED, RolloutState.VERIFYING)  # the states that have a lease

_OTHERS = "(tasks.body -> '{0}') - ARRAY(SELECT path FROM jsonb_object_keys(tasks.body -> '{0}') AS path WHERE path ~ '^(steps/[^/]+/)?solution/')"
WITHOUT_SOLUTION: ColumnElement[dict[str, Any]] = literal_column(
    "tasks.body || jsonb_strip_nulls(jsonb_build_object("
    f"'files', {_OTHERS.format('files')}, 'files_b64', {_OTHERS.format('files_b64')}))",
    JSONB,
).label("body")
"""The packed task without the files of `solution/`, also those of its steps. No runner needs them, except for the scaffolds that run them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Everything that a holder needs for its work, and the epoch that fences it. `body` is the packed task without its reference solution."""

    run_id: int
    rollout_id: int
    group_id: int
    member: int
    attempt: int
    epoch: int
    seed: int
    purpose: Purpose
    scaffold: str
    pinned_version: int | None
    domain: str
    task_name: str
    body: dict[str, Any]
    label: str | None = None  # the evaluation or recording of its group
    sampling: dict[str, float] = field(default_factory=dict)  # overrides of the run's sampling parameters
    stage: int = 0  # number of the stage in which its group was dispatched
    # `time.monotonic()` at the start time in its attempt's row.
    began: float = field(default_factory=time.monotonic)


async def lease(
    connection: AsyncConnection,
    run_id: int,
    rollout_id: int,
    epoch: int,
    owner: str,
    ttl_s: float,
    *,
    attempt: int | None = None,
    before: RolloutState = RolloutState.QUEUED,
) -> Lease | None:
    """Take the lease of `epoch` (QUEUED → RUNNING, or FINISHED → VERIFYING); None when it is stale or taken, or the rollout is of another run.

    `attempt`, if given, must be the rollout's: an assignment names it.
    """
    new_state = RolloutState.RUNNING if before is RolloutState.QUEUED else RolloutState.VERIFYING
    expires = func.clock_timestamp() + timedelta(seconds=ttl_s)
    if not await transitions.move_rollout(
        connection,
        rollout_id,
        before,
        new_state,
        run_id=run_id,
        attempt=attempt,
        epoch=epoch,
        values={"lease_owner": owner, "lease_until": expires},
    ):
        return None
    row = await _work_of(connection, rollout_id)
    age_s = 0.0
    if new_state is RolloutState.RUNNING:
        age_s = await _start_attempt(connection, rollout_id, row, epoch=epoch, owner=owner)
    return from_row(
        Lease,
        row,
        epoch=epoch,
        sampling=row.sampling or {},
        stage=row.stage or 0,
        began=time.monotonic() - age_s,
    )


async def _work_of(connection: AsyncConnection, rollout_id: int) -> Any:
    """The row of a rollout with its group and its task."""
    query = (
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
            tasks.c.name.label("task_name"),
            WITHOUT_SOLUTION,
            groups.c.stage,
        )
        .join(groups, groups.c.group_id == rollouts.c.group_id)
        .join(tasks, tasks.c.task_id == groups.c.task_id)
        .where(rollouts.c.rollout_id == rollout_id)
    )
    return (await connection.execute(query)).one()


async def _start_attempt(
    connection: AsyncConnection, rollout_id: int, row: Any, *, epoch: int, owner: str
) -> float:
    """Write the attempt's row, or the new lease into that of a resumed attempt. Returns the seconds since the attempt started."""
    age = func.extract("epoch", func.clock_timestamp() - attempts.c.started)
    started = await connection.scalar(
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
        .returning(age)
    )
    return max(0.0, float(started or 0))


async def whole_task(connection: AsyncConnection, rollout_id: int) -> dict[str, Any]:
    """The packed task of a rollout, with its reference solution."""
    query = (
        select(tasks.c.body)
        .join(groups, groups.c.task_id == tasks.c.task_id)
        .join(rollouts, rollouts.c.group_id == groups.c.group_id)
        .where(rollouts.c.rollout_id == rollout_id)
    )
    return dict((await connection.execute(query)).scalar_one())


async def heartbeat(
    connection: AsyncConnection, run_id: int, owner: str, epochs: dict[int, int], ttl_s: float
) -> set[int]:
    """Extend the leases {rollout_id: epoch} of `owner` in the run. Return those that are still held. The others are lost: stop their work."""
    if not epochs:
        return set()
    rows = await connection.execute(
        text(
            "WITH held AS (SELECT r.rollout_id FROM rollouts r "
            "JOIN unnest(CAST(:ids AS bigint[]), CAST(:epochs AS int[])) AS k(id, epoch) "
            "ON r.rollout_id = k.id AND r.lease_epoch = k.epoch "
            "WHERE r.run_id = :run AND r.lease_owner = :owner AND r.state IN ('running', 'verifying') "
            "ORDER BY r.rollout_id FOR UPDATE OF r) "
            "UPDATE rollouts r SET lease_until = clock_timestamp() + make_interval(secs => :ttl) "
            "FROM held WHERE r.rollout_id = held.rollout_id RETURNING r.rollout_id"
        ),
        {
            "ttl": ttl_s,
            "run": run_id,
            "ids": list(epochs),
            "epochs": list(epochs.values()),
            "owner": owner,
        },
    )
    return {row.rollout_id for row in rows}


async def give_back(connection: AsyncConnection, run_id: int, owner: str, epochs: dict[int, int]) -> int:
    """End the leases {rollout_id: epoch} in the run of an `owner` that stops. They expire at once, so the reaper need not wait. Returns how many.

    Their attempts are cancelled, which does not count as a failure.
    """
    rows = await connection.execute(
        text(
            "WITH held AS (SELECT r.rollout_id, r.attempt, r.state FROM rollouts r "
            "JOIN unnest(CAST(:ids AS bigint[]), CAST(:epochs AS int[])) AS k(id, epoch) "
            "ON r.rollout_id = k.id AND r.lease_epoch = k.epoch "
            "WHERE r.run_id = :run AND r.lease_owner = :owner AND r.state IN ('running', 'verifying') "
            "ORDER BY r.rollout_id FOR UPDATE OF r), "
            "cancelled AS (UPDATE attempts a SET ended = clock_timestamp(), failure_class = 'cancelled', reason = 'the runner gave it back' "
            "FROM held WHERE held.state = 'running' AND a.rollout_id = held.rollout_id AND a.attempt = held.attempt) "
            "UPDATE rollouts r SET lease_until = clock_timestamp(), lease_owner = NULL "
            "FROM held WHERE r.rollout_id = held.rollout_id RETURNING r.rollout_id"
        ),
        {"run": run_id, "ids": list(epochs), "epochs": list(epochs.values()), "owner": owner},
    )
    return len(rows.all())


async def failures(connection: AsyncConnection, rollout_id: int) -> int:
    """How many attempts of a rollout failed. Attempts that a stopping runner gave back do not count."""
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
    moved = await transitions.move_rollout(
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
    """End a rollout without a verdict: it is in neither the baseline nor a batch."""
    moved = await transitions.move_rollout(
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
    """Apply `lose`, as cancelled, to every open rollout of several locked groups."""
    values = {
        "failure_class": FailureClass.CANCELLED,
        "reason": clean(reason),
        "lease_owner": None,
        "lease_until": None,
    }
    moved = await transitions.end_members(
        connection, group_ids, RolloutState.LOST, reason=reason, values=values
    )
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
    """End an attempt that has reported nothing, with its reason: `attempt`, or the open attempt. A reported attempt keeps its own reason."""
    statement = (
        attempts.update()
        .where(attempts.c.rollout_id == rollout_id, attempts.c.ended.is_(None))
        .values(ended=func.clock_timestamp(), failure_class=failure, reason=clean(reason))
    )
    if attempt is not None:
        statement = statement.where(attempts.c.attempt == attempt)
    await connection.execute(statement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """A lease that expired or was given back early."""

    run_id: int
    rollout_id: int
    group_id: int
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
    """Lock the expired leases of `states`, skipping those that another reaper holds."""
    rows = await connection.execute(
        select(
            rollouts.c.run_id,
            rollouts.c.rollout_id,
            rollouts.c.group_id,
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
        from_wide_row(
            Expired,
            row,
            epoch=row.lease_epoch,
            given_back=row.lease_owner is None and row.state != RolloutState.REPORTED,
        )
        for row in rows
    ]


async def grace(
    connection: AsyncConnection,
    run_id: int,
    ttl_s: float,
    *,
    states: Collection[RolloutState] = LEASED,
    again: bool = False,
) -> None:
    """Give every lease of `states` at least one full time to live: its holder could not renew it while Postgres or the reaper was unreachable.
    The bus may have delayed messages that a reported rollout waits for: it gets the full time for them to arrive.

    A lease gets grace only once until its owner renews it, from any orchestrator: `graced_until` stores the end that grace set, and every other
    write sets a different end. So neither an orchestrator that restarts repeatedly nor several of them keep a dead holder's lease alive. A lease
    that was given back has no holder. `again`: also repeatedly, for leases without an owner to renew them that wait for the bus, and for all of them
    after a step of the database's clock.
    """
    now, reported = func.clock_timestamp(), rollouts.c.state == RolloutState.REPORTED
    ttl, arrived = timedelta(seconds=ttl_s), timedelta(seconds=max(ttl_s, timeouts().arrival_s))
    length = case((reported, arrived), else_=ttl)
    expiring = (
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
    # One reading of the clock for both columns, taken after the wait for the lock.
    extensions = (
        select(expiring.c.rollout_id, (now + expiring.c.length).label("until"))
        .cte("given")
        .prefix_with("MATERIALIZED")
    )
    await connection.execute(
        update(rollouts)
        .where(rollouts.c.rollout_id == extensions.c.rollout_id)
        .values(lease_until=extensions.c.until, graced_until=extensions.c.until)
    )


async def clock(connection: AsyncConnection) -> datetime:
    """The time of the database's clock, by which leases end."""
    now: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    return now


async def clock_set_back(connection: AsyncConnection, run_id: int, ttl_s: float) -> None:
    """Shorten every lease of a run to one full time to live, and every delay in its outbox to `ttl_s` seconds: ends that were set before the
    database's clock went back may be hours away. The queue row must be locked."""
    now, reported = func.clock_timestamp(), rollouts.c.state == RolloutState.REPORTED
    ttl, arrived = timedelta(seconds=ttl_s), timedelta(seconds=max(ttl_s, timeouts().arrival_s))
    length = case((reported, arrived), else_=ttl)
    late = (
        select(rollouts.c.rollout_id, (now + length).label("until"))
        .where(rollouts.c.run_id == run_id, rollouts.c.lease_until > now + length)
        .order_by(rollouts.c.rollout_id)
        .with_for_update()
        .cte("late")
    )
    await connection.execute(
        update(rollouts).where(rollouts.c.rollout_id == late.c.rollout_id).values(lease_until=late.c.until)
    )
    await connection.execute(
        update(outbox)
        .where(outbox.c.run_id == run_id, outbox.c.not_before > now + ttl)
        .values(not_before=now + ttl)
    )


async def group_of(connection: AsyncConnection, rollout_id: int) -> int:
    """The group of a rollout."""
    return int(
        await connection.scalar(select(rollouts.c.group_id).where(rollouts.c.rollout_id == rollout_id)) or 0
    )


async def pool_of(connection: AsyncConnection, rollout_id: int) -> str:
    """The runner pool of a rollout."""
    return str(await connection.scalar(select(rollouts.c.pool).where(rollouts.c.rollout_id == rollout_id)))


async def for_training(connection: AsyncConnection, run_id: int, rollout_ids: Collection[int]) -> set[int]:
    """Those of `rollout_ids` that are rollouts of the run's training groups."""
    query = (
        select(rollouts.c.rollout_id)
        .join(groups, groups.c.group_id == rollouts.c.group_id)
        .where(
            rollouts.c.run_id == run_id,
            among(rollouts.c.rollout_id, rollout_ids),
            groups.c.purpose == Purpose.TRAIN,
        )
    )
    return set(await connection.scalars(query))


async def purpose_of(connection: AsyncConnection, rollout_id: int) -> Purpose:
    """The purpose that a rollout inherits from its group."""
    purpose = await connection.scalar(
        select(groups.c.purpose)
        .join(rollouts, rollouts.c.group_id == groups.c.group_id)
        .where(rollouts.c.rollout_id == rollout_id)
    )
    return member(Purpose, str(purpose))
