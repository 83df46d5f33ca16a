"""Resumes: an attempt that continues under another lease, from its recorded steps.

A resume keeps the attempt and raises the epoch. Later messages of the old holder are refused. The new holder's scaffold is served the stored
steps and continues after the last of them. Each resume is a row. Their number per rollout is bounded, so that a rollout which
kills its runner every time comes to an end.
"""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import Replay, RolloutState
from orchestrator.pool import transitions
from orchestrator.pool.columns import among
from orchestrator.pool.sanitize import clean
from orchestrator.pool.tables import attempts, resumes, rollouts, sessions, steps
from orchestrator.runtime.backoff import doubled

_NOTHING = {
    "ended": None,
    "failure_class": None,
    "reason": None,
    "steps": None,
    "last_idx": None,
    "digest": None,
    "answer": None,
    "agent_s": None,
    "queued_s": None,
    "generation_s": None,
    "waiting_s": None,
    "system": None,
    "log": None,
    "spent": None,
    "ungradable": None,
    "resumable": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """An attempt whose `steps` recorded steps are to be replayed under `epoch`, after `delay_s` at the earliest."""

    attempt: int
    epoch: int
    steps: int
    delay_s: float


async def resume(
    connection: AsyncConnection,
    rollout_id: int,
    before: RolloutState,
    epoch: int,
    *,
    reason: str,
    given_back: bool,
    most: int,
    retry_delay_s: float,
) -> Resumed | None:
    """Back to QUEUED in the same attempt with a new epoch; `retry_delay_s` doubles with every resume (`backoff.doubled`).

    None, without any change: no step is stored, or a step between them is missing, the scaffold is not replayable, the rollout was resumed
    `most` times already (after a stopping runner gave it back it is resumed beyond that, unless `most` is 0), or the race was lost.
    """
    row = (
        await connection.execute(
            select(rollouts.c.run_id, rollouts.c.attempt).where(rollouts.c.rollout_id == rollout_id)
        )
    ).one()
    recorded = await _recorded_steps(connection, row.run_id, rollout_id, row.attempt)
    if not recorded or not await _replayable(connection, rollout_id, row.attempt):
        return None
    so_far = await _resumes(connection, rollout_id)
    if so_far >= most and not (given_back and most):
        return None
    delay_s = 0.0 if given_back else doubled(retry_delay_s, so_far)
    moved = await transitions.move_rollout(
        connection,
        rollout_id,
        before,
        RolloutState.QUEUED,
        epoch=epoch,
        reason=f"{reason}; resumed after {recorded} steps",
        values={
            "lease_epoch": epoch + 1,
            "lease_owner": None,
            "lease_until": None,
            "not_before": func.clock_timestamp() + timedelta(seconds=delay_s),
        },
    )
    if not moved:
        return None
    await interrupted(connection, rollout_id)
    resumed = Resumed(attempt=row.attempt, epoch=epoch + 1, steps=recorded, delay_s=delay_s)
    await _continue_attempt(connection, row.run_id, rollout_id, resumed, reason=reason, given_back=given_back)
    return resumed


async def _continue_attempt(
    connection: AsyncConnection,
    run_id: int,
    rollout_id: int,
    resumed: Resumed,
    *,
    reason: str,
    given_back: bool,
) -> None:
    """The attempt has no end any more, and one resume more."""
    await connection.execute(
        update(attempts)
        .where(attempts.c.rollout_id == rollout_id, attempts.c.attempt == resumed.attempt)
        .values(_NOTHING)
    )
    await connection.execute(
        insert(resumes).values(
            run_id=run_id,
            rollout_id=rollout_id,
            attempt=resumed.attempt,
            epoch=resumed.epoch,
            steps=resumed.steps,
            reason=clean(reason),
            given_back=given_back,
        )
    )
    await transitions.count(connection, run_id, "rollouts_resumed")


async def _recorded_steps(connection: AsyncConnection, run_id: int, rollout_id: int, attempt: int) -> int:
    """How many steps of the attempt are stored; 0 if one between them is missing."""
    stored = (
        await connection.execute(
            select(func.count().label("n"), func.max(steps.c.idx).label("last")).where(
                steps.c.run_id == run_id, steps.c.rollout_id == rollout_id, steps.c.attempt == attempt
            )
        )
    ).one()
    return int(stored.n) if stored.last == stored.n - 1 else 0


async def _replayable(connection: AsyncConnection, rollout_id: int, attempt: int) -> bool:
    """Whether the scaffold of the newest session of the attempt was declared replayable."""
    return bool(
        await connection.scalar(
            select(sessions.c.replayable)
            .where(sessions.c.rollout_id == rollout_id, sessions.c.attempt == attempt)
            .order_by(sessions.c.epoch.desc())
            .limit(1)
        )
    )


async def _resumes(connection: AsyncConnection, rollout_id: int) -> int:
    query = select(func.count()).where(resumes.c.rollout_id == rollout_id, ~resumes.c.given_back)
    return int(await connection.scalar(query) or 0)


async def interrupted(connection: AsyncConnection, *rollout_ids: int) -> None:
    """Their leases have ended: a resume without a reported result was interrupted."""
    await connection.execute(
        update(resumes)
        .where(among(resumes.c.rollout_id, rollout_ids), resumes.c.replay.is_(None))
        .values(replay=Replay.INTERRUPTED)
    )


async def record_result(
    connection: AsyncConnection, run_id: int, rollout_id: int, epoch: int, replay: Replay, replayed: int
) -> None:
    """Store the result of the resume under `epoch`, as its runner reports it. A divergence is counted."""
    await connection.execute(
        update(resumes)
        .where(resumes.c.rollout_id == rollout_id, resumes.c.epoch == epoch)
        .values(replay=replay, replayed=replayed)
    )
    if replay is Replay.DIVERGED:
        await transitions.count(connection, run_id, "resumes_diverged")
