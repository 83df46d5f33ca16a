"""Dispatch: gives accepted groups their queue position and their rollouts an assignment, under the lock of the queue row."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Select, func, literal_column, select, text, union_all, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import FailureClass, GroupState, Purpose, RolloutState
from orchestrator.pool import transitions
from orchestrator.pool.columns import in_state
from orchestrator.pool.curriculum import stage_number, waiting
from orchestrator.pool.policy_versions import committed
from orchestrator.pool.rows import from_row
from orchestrator.pool.tables import attempts, groups, queue, resumes, rollouts
from orchestrator.scheduling.admission import QueueCounts
from orchestrator.settings.curriculum import NextStage, StageSection

BUSY = (RolloutState.QUEUED, RolloutState.RUNNING)
SERVED_WITHIN = 2_000  # domain shares hold over this many latest positions, so that counting them stays cheap

# More than are ever dispatched at once; under the queue's lock, and in a stage, waiting groups are not counted beyond.
WAITING_WITHIN = 1_000

# Steps from one domain to the next in the index groups_accepted, and reads at most `most` groups of each; all if it is null.
_ACCEPTED = text(
    """
    WITH RECURSIVE domains AS (
      (SELECT domain FROM groups WHERE run_id = :run AND state = 'accepted' ORDER BY domain LIMIT 1)
      UNION ALL
      SELECT next.domain FROM domains CROSS JOIN LATERAL (
        SELECT g.domain FROM groups g WHERE g.run_id = :run AND g.state = 'accepted' AND g.domain > domains.domain
         ORDER BY g.domain LIMIT 1) next)
    SELECT domain, (SELECT count(*) FROM (
        SELECT 1 FROM groups g WHERE g.run_id = :run AND g.state = 'accepted' AND g.domain = domains.domain AND g.purpose = 'train'
         ORDER BY g.group_id LIMIT cast(:most AS bigint)) AS counted) AS groups
      FROM domains
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """The queue row, the counts for admission, and per domain the served and waiting groups (of the stage, if there is one)."""

    intake_open: bool
    admission_open: bool
    counts: QueueCounts
    served: Mapping[str, int]
    accepted: Mapping[str, int]
    # The current stage, if the run has stages; with the weights that a person set.
    stage: NextStage | None = None
    number: int = 0  # its index among the stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A rollout that may be leased now."""

    rollout_id: int
    attempt: int
    epoch: int
    pool: str


async def lock_queue(
    connection: AsyncConnection, run_id: int, stages: StageSection | None = None
) -> QueueView:
    """Lock the run's queue row, then count. Every claim and dispatch of a run is serialised here, so the cost does not grow with the groups that
    wait: `accepted` counts up to `WAITING_WITHIN` per domain."""
    await transitions.lock_run(connection, run_id)
    return await view_queue(connection, run_id, stages, most=WAITING_WITHIN)


async def view_queue(
    connection: AsyncConnection, run_id: int, stages: StageSection | None = None, *, most: int | None = None
) -> QueueView:
    """The result of `lock_queue` without its lock: for read-only callers. `most`: groups of a domain that `accepted` counts in a run of one stage;
    None for all."""
    row = (await connection.execute(select(queue).where(queue.c.run_id == run_id))).one()
    in_run = groups.c.run_id == run_id
    outstanding = await connection.scalar(
        select(func.count()).where(in_run, groups.c.seq.is_not(None), ~groups.c.done)
    )
    totals = await committed(connection, run_id)
    busy = await connection.scalar(
        select(func.count())
        .select_from(rollouts.join(groups, groups.c.group_id == rollouts.c.group_id))
        .where(
            rollouts.c.run_id == run_id, in_state(rollouts.c.state, *BUSY), groups.c.purpose == Purpose.TRAIN
        )
    )
    number = stages.number(totals.batches) if stages is not None else 0
    by_domain = select(groups.c.domain, func.count()).group_by(groups.c.domain)
    recent = by_domain.where(in_run, groups.c.seq >= row.next_seq - SERVED_WITHIN)
    if stages is not None and stages.then:  # shares are those of the stage, not of earlier stages
        recent = recent.where(func.coalesce(groups.c.stage, 0) == number)
        accepted = await _present(connection, run_id, stages)
    else:
        waits = await connection.execute(_ACCEPTED, {"run": run_id, "most": most})
        accepted = {row.domain: row.groups for row in waits if row.groups}
    counts = QueueCounts(
        dispatched=row.next_seq,
        resolved=row.next_seq - int(outstanding or 0) - totals.groups,
        consumed=totals.groups,
        committed_batches=totals.batches,
        running_rollouts=int(busy or 0),
    )
    served = {d: n for d, n in await connection.execute(recent)}
    return QueueView(
        intake_open=row.intake_open,
        admission_open=row.admission_open,
        counts=counts,
        served=served,
        accepted=accepted,
        stage=_steered(stages.all[number], row.shares, {*served, *accepted}) if stages is not None else None,
        number=number,
    )


def _steered(stage: NextStage, shares: Mapping[str, Any] | None, seen: Set[str]) -> NextStage:
    """The stage with the weights that a person set for it. If it names no domains, a domain that arrived later has weight 1."""
    if shares is None or shares["stage"] != stage.name:
        return stage
    new_shares = {} if stage.domains else dict.fromkeys(sorted(seen), 1.0)
    return stage.model_copy(update={"domains": {**new_shares, **shares["domains"]}})


async def _present(connection: AsyncConnection, run_id: int, stages: StageSection) -> dict[str, int]:
    """How many groups of each domain wait for the current stage, counted up to `WAITING_WITHIN` per difficulty."""
    counts: dict[str, int] = {}
    for kind in (await waiting(connection, run_id, stages)).present:
        matching = select(groups.c.group_id).where(
            groups.c.run_id == run_id,
            in_state(groups.c.state, GroupState.ACCEPTED),
            groups.c.difficulty == kind.difficulty,
            groups.c.domain == kind.domain,
        )
        n = await connection.scalar(
            select(func.count()).select_from(matching.limit(WAITING_WITHIN).subquery())
        )
        counts[kind.domain] = counts.get(kind.domain, 0) + int(n or 0)
    return counts


def _oldest(run_id: int, domain: str, difficulties: Sequence[str]) -> Select[tuple[int, int]]:
    """(group_id, size) of the oldest accepted training group of a domain. The index gives one group per difficulty, however many wait."""
    each = (
        select(groups.c.group_id, groups.c.size)
        .where(
            groups.c.run_id == run_id,
            groups.c.domain == domain,
            in_state(groups.c.state, GroupState.ACCEPTED),
            groups.c.purpose == Purpose.TRAIN,
        )
        .order_by(groups.c.group_id)
        .limit(1)
    )
    if not difficulties:
        return each
    firsts = union_all(
        *(select(each.where(groups.c.difficulty == name).subquery()) for name in difficulties)
    ).subquery()
    return select(firsts.c.group_id, firsts.c.size).order_by(firsts.c.group_id).limit(1)


async def ended_lately(connection: AsyncConnection, run_id: int, window_s: float) -> tuple[int, int]:
    """(attempts that ended within the last `window_s` seconds, infrastructure failures among them). An attempt that was resumed after such a
    failure counts as both. Rows that are later than now do not count: they are older than a step
    back of the database's clock, and count once more when it reaches their times."""
    since = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, window_s)
    until = func.clock_timestamp()
    failed = func.count().filter(attempts.c.failure_class == FailureClass.INFRA_FAILURE)
    row = (
        await connection.execute(
            select(func.count(), failed).where(
                attempts.c.run_id == run_id, attempts.c.ended > since, attempts.c.ended <= until
            )
        )
    ).one()
    lost = select(func.count()).where(
        resumes.c.run_id == run_id, resumes.c.at > since, resumes.c.at <= until, ~resumes.c.given_back
    )
    resumed = int(await connection.scalar(lost) or 0)
    return int(row[0]) + resumed, int(row[1]) + resumed


async def anything_waits(connection: AsyncConnection, run_id: int) -> bool:
    """Whether any group waits to be dispatched. Reads without the queue's lock, which other transactions need more."""
    accepted = select(groups.c.group_id).where(
        groups.c.run_id == run_id, in_state(groups.c.state, GroupState.ACCEPTED)
    )
    return bool(await connection.scalar(select(accepted.exists())))


async def dispatch_train(
    connection: AsyncConnection,
    run_id: int,
    choose: Callable[[QueueView], list[str]],
    running_rollouts: int | None = None,
    stages: StageSection | None = None,
) -> list[Assignment]:
    """Dispatch one accepted train group for each domain that `choose` names, in order; each gets the next seq.

    The first group that would exceed the bound of `running_rollouts` blocks the others, so that small groups cannot starve it.
    """
    view = await lock_queue(connection, run_id, stages)
    if not view.admission_open:
        return []
    assignments: list[Assignment] = []
    seq, running = view.counts.dispatched, view.counts.running_rollouts
    # In a run of one stage every accepted group belongs to it.
    difficulties = view.stage.difficulties if stages is not None and stages.then and view.stage else ()
    for domain in choose(view):
        oldest = (await connection.execute(_oldest(run_id, domain, difficulties))).one()
        running += oldest.size
        if running_rollouts is not None and running > running_rollouts:
            break
        moved = await transitions.move_group(
            connection,
            oldest.group_id,
            GroupState.ACCEPTED,
            GroupState.DISPATCHED,
            values={"seq": seq, "stage": view.number},
        )
        assert moved, (
            "the queue row is locked: no other process dispatches, and a run that ends takes the lock too"
        )
        seq += 1
        assignments += await _queue_members(connection, oldest.group_id)
    if assignments:
        await connection.execute(update(queue).where(queue.c.run_id == run_id).values(next_seq=seq))
    return assignments


async def dispatch_other(
    connection: AsyncConnection, run_id: int, slots: int, stages: StageSection | None = None
) -> list[Assignment]:
    """Dispatch accepted eval and record groups, oldest first, while at most `slots` of their rollouts are busy."""
    await transitions.lock_run(connection, run_id)
    busy = await connection.scalar(
        select(func.count())
        .select_from(rollouts.join(groups, groups.c.group_id == rollouts.c.group_id))
        .where(
            rollouts.c.run_id == run_id, in_state(rollouts.c.state, *BUSY), groups.c.purpose != Purpose.TRAIN
        )
    )
    free_slots = slots - int(busy or 0)
    assignments: list[Assignment] = []
    rows = await connection.execute(
        select(groups.c.group_id, groups.c.size)
        .where(
            groups.c.run_id == run_id,
            in_state(groups.c.state, GroupState.ACCEPTED),
            groups.c.purpose != literal_column(f"'{Purpose.TRAIN}'"),  # as in the index groups_other
        )
        .order_by(groups.c.group_id)
        .limit(max(0, free_slots))
    )
    found = rows.all()
    number = await stage_number(connection, run_id, stages) if found and stages is not None else 0
    for row in found:
        if free_slots < row.size and free_slots < slots:
            break  # a group of more than `slots` runs alone
        if await transitions.move_group(
            connection,
            row.group_id,
            GroupState.ACCEPTED,
            GroupState.DISPATCHED,
            values={"stage": number},
        ):
            assignments += await _queue_members(connection, row.group_id)
            free_slots -= row.size
    return assignments


async def _queue_members(connection: AsyncConnection, group_id: int) -> list[Assignment]:
    moved = await transitions.move_rollouts(
        connection, group_id, RolloutState.WAITING, RolloutState.QUEUED, epoch=1
    )
    return [
        Assignment(rollout_id=row.rollout_id, attempt=row.attempt, epoch=1, pool=row.pool) for row in moved
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingWork:
    """A rollout that waits for a runner (its state is queued) or for a verifier (finished). `purpose`: its group's."""

    rollout_id: int
    attempt: int
    lease_epoch: int
    pool: str
    state: RolloutState
    purpose: Purpose


async def waiting_work(
    connection: AsyncConnection, run_id: int, unchanged_for: timedelta | None = None
) -> list[WaitingWork]:
    """The rollouts that wait for a worker, in the order of their ids; with `unchanged_for`, those that wait for longer than that."""
    query = (
        select(
            rollouts.c.rollout_id,
            rollouts.c.attempt,
            rollouts.c.lease_epoch,
            rollouts.c.pool,
            rollouts.c.state,
            groups.c.purpose,
        )
        .join(groups, groups.c.group_id == rollouts.c.group_id)
        .where(
            rollouts.c.run_id == run_id,
            in_state(rollouts.c.state, RolloutState.QUEUED, RolloutState.FINISHED),
        )
        .order_by(rollouts.c.rollout_id)
    )
    if unchanged_for is not None:
        query = query.where(rollouts.c.changed < func.clock_timestamp() - unchanged_for)
    rows = await connection.execute(query)
    return [from_row(WaitingWork, row, without=("state",), state=RolloutState(row.state)) for row in rows]
