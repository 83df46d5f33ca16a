"""Results of rollouts: what a runner announced, whether all of it has arrived, and the verdict.

A rollout is complete only when every step it announced is in the data pool with the announced digest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.clock import clock
from orchestrator.contracts.events import ArtifactFile, RolloutFinished, VerdictReached
from orchestrator.contracts.ids import b64, unb64
from orchestrator.contracts.states import FailureClass, Replay, RolloutState
from orchestrator.pool import history, resumes
from orchestrator.pool.clean import clean
from orchestrator.pool.tables import (
    artifacts,
    attempts,
    groups,
    rollouts,
    step_marks,
    steps,
    tool_calls,
    verdicts,
)


async def report(connection: AsyncConnection, run_id: int, event: RolloutFinished) -> bool:
    """RUNNING → REPORTED with everything that the runner announced; False (counted) for a stale epoch or a repeat."""
    moved = await history.move_rollout(
        connection,
        event.rollout,
        RolloutState.RUNNING,
        RolloutState.REPORTED,
        run_id=run_id,
        attempt=event.attempt,
        epoch=event.epoch,
        reason=event.failure_class,
        # The lease of a reported rollout is the orchestrator's: it expires when the announced steps never arrive.
        values={
            "lease_owner": None,
            "lease_until": func.clock_timestamp() + timedelta(seconds=clock().arrival_s),
        },
    )
    if not moved:
        await history.count(connection, run_id, "results_stale")
        return False
    await connection.execute(
        update(attempts)
        .where(attempts.c.rollout_id == event.rollout, attempts.c.attempt == event.attempt)
        .values(
            ended=func.clock_timestamp(),
            failure_class=event.failure_class,
            reason=clean(event.reason) or None,
            steps=event.steps,
            last_idx=event.last_idx,
            digest=bytes.fromhex(event.digest) or None,
            answer=clean(event.answer) if event.answer is not None else None,
            agent_s=event.agent_s,
            queued_s=event.queued_s,
            log=clean(event.log),
            scaffold=event.scaffold or None,
            scaffold_version=event.scaffold_version or None,
            scaffold_sha=event.scaffold_sha or None,
            resumable=event.resumable,
            spent=event.spent or None,
        )
    )
    if event.replay:
        await resumes.told(
            connection, run_id, event.rollout, event.epoch, Replay(event.replay), event.replayed
        )
    keys: dict[str, Any] = {"run_id": run_id, "rollout_id": event.rollout, "attempt": event.attempt}
    # Whether a step reached its harness is not settled while it may be replayed: the result that ends the attempt says it.
    if event.marks and not event.resumable:
        await connection.execute(
            insert(step_marks).on_conflict_do_nothing(),
            [keys | {"idx": mark.idx, "reason": clean(mark.reason)} for mark in event.marks],
        )
    if event.artifacts:
        await connection.execute(
            insert(artifacts).on_conflict_do_nothing(),
            [
                keys
                | {
                    "path": clean(f.path),
                    "mode": f.mode,
                    "body": unb64(f.body) if f.body is not None else None,
                }
                for f in event.artifacts
            ],
        )
    if event.tool_calls:
        await connection.execute(
            insert(tool_calls).on_conflict_do_nothing(),
            [
                keys
                | {
                    "idx": call.step,
                    "call": call.call,
                    "name": clean(call.name),
                    "start_s": call.start,
                    "end_s": call.end,
                    "exit_code": call.exit,
                    "bytes": call.bytes,
                }
                for call in event.tool_calls
            ],
        )
    return True


@dataclass(frozen=True, slots=True)
class Reported:
    """A reported attempt with what was announced and what has arrived."""

    rollout_id: int
    group_id: int
    attempt: int
    epoch: int
    purpose: str
    failure_class: FailureClass
    reason: str | None
    resumable: bool
    announced: int
    arrived: int
    digest_matches: bool  # of all steps together; and each is what its parent, delta and action make it


async def reported(connection: AsyncConnection, rollout_ids: Sequence[int]) -> list[Reported]:
    """Lock the given rollouts that are REPORTED (by id) and compare announcement and arrival."""
    rows = await connection.execute(
        select(
            rollouts.c.rollout_id,
            rollouts.c.run_id,
            rollouts.c.group_id,
            rollouts.c.attempt,
            rollouts.c.lease_epoch,
            groups.c.purpose,
            attempts.c.failure_class,
            attempts.c.reason,
            attempts.c.resumable,
            attempts.c.steps,
            attempts.c.digest,
        )
        .join(groups, groups.c.group_id == rollouts.c.group_id)
        .join(
            attempts,
            (attempts.c.rollout_id == rollouts.c.rollout_id) & (attempts.c.attempt == rollouts.c.attempt),
        )
        .where(rollouts.c.rollout_id.in_(rollout_ids), rollouts.c.state == RolloutState.REPORTED)
        .order_by(rollouts.c.rollout_id)
        .with_for_update(of=rollouts)
    )
    found = []
    for row in rows:
        arrived = (
            await connection.execute(
                select(
                    func.count().label("n"),
                    func.sha256(
                        func.coalesce(text("string_agg(chain_sha, ''::bytea ORDER BY idx)"), b"")
                    ).label("digest"),
                ).where(
                    steps.c.run_id == row.run_id,
                    steps.c.rollout_id == row.rollout_id,
                    steps.c.attempt == row.attempt,
                )
            )
        ).one()
        matches = row.digest == arrived.digest if arrived.n else row.digest in (None, arrived.digest)
        if matches:
            matches = not await connection.scalar(
                select(func.count()).select_from(
                    func.broken_steps(row.run_id, row.rollout_id, row.attempt).alias()
                )
            )
        found.append(
            Reported(
                row.rollout_id, row.group_id, row.attempt, row.lease_epoch, row.purpose,
                FailureClass(row.failure_class), row.reason, row.resumable, row.steps or 0, arrived.n, matches,
            )
        )  # fmt: skip
    return found


async def finish(
    connection: AsyncConnection, rollout_id: int, epoch: int, failure: FailureClass
) -> int | None:
    """REPORTED → FINISHED under a new epoch, which the verification carries; None when the race was lost."""
    moved = await history.move_rollout(
        connection,
        rollout_id,
        RolloutState.REPORTED,
        RolloutState.FINISHED,
        epoch=epoch,
        values={
            "lease_epoch": epoch + 1,
            "lease_owner": None,
            "lease_until": None,
            "failure_class": failure,
            "verify_tries": 0,
        },
    )
    return epoch + 1 if moved else None


async def verify_again(
    connection: AsyncConnection,
    run_id: int,
    rollout_id: int,
    epoch: int,
    *,
    reason: str,
    delay_s: float,
    tried: bool = True,
) -> tuple[int, int] | None:
    """VERIFYING → FINISHED under a new epoch: (tries so far, new epoch), or None when the race was lost. `tried`: this one counts."""
    moved = await history.move_rollout(
        connection,
        rollout_id,
        RolloutState.VERIFYING,
        RolloutState.FINISHED,
        run_id=run_id,
        epoch=epoch,
        reason=reason,
        values={
            "lease_epoch": epoch + 1,
            "lease_owner": None,
            "lease_until": None,
            "verify_tries": rollouts.c.verify_tries + int(tried),
            "not_before": func.clock_timestamp() + timedelta(seconds=delay_s),
        },
    )
    if not moved:
        return None
    tries = await connection.scalar(
        select(rollouts.c.verify_tries).where(rollouts.c.rollout_id == rollout_id)
    )
    return int(tries or 0), epoch + 1


async def verdict(connection: AsyncConnection, run_id: int, event: VerdictReached) -> bool:
    """VERIFYING → VERIFIED with the verdict's row; False (counted) for a stale epoch or a repeat."""
    assert event.reward is not None
    moved = await history.move_rollout(
        connection,
        event.rollout,
        RolloutState.VERIFYING,
        RolloutState.VERIFIED,
        run_id=run_id,
        attempt=event.attempt,
        epoch=event.epoch,
        values={"lease_owner": None, "lease_until": None},
    )
    if not moved:
        await history.count(connection, run_id, "verdicts_stale")
        return False
    revision = func.coalesce(
        select(func.max(verdicts.c.revision) + 1)
        .where(verdicts.c.rollout_id == event.rollout)
        .scalar_subquery(),
        1,
    )
    await connection.execute(
        insert(verdicts).values(
            run_id=run_id,
            rollout_id=event.rollout,
            revision=revision,
            attempt=event.attempt,
            epoch=event.epoch,
            reward=event.reward,
            tests=[
                {"name": clean(t.name), "passed": t.passed, "message": clean(t.message)} for t in event.tests
            ],
            exit_code=event.exit_code,
            log=clean(event.log),
            verify_s=event.verify_s,
        )
    )
    return True


async def artifacts_of(
    connection: AsyncConnection, rollout_id: int, attempt: int
) -> tuple[str | None, list[ArtifactFile]]:
    """The attempt's answer and the files that cross to verification (bodies base64, None = deleted)."""
    answer = await connection.scalar(
        select(attempts.c.answer).where(attempts.c.rollout_id == rollout_id, attempts.c.attempt == attempt)
    )
    rows = await connection.execute(
        select(artifacts)
        .where(artifacts.c.rollout_id == rollout_id, artifacts.c.attempt == attempt)
        .order_by(artifacts.c.path)
    )
    return answer, [
        ArtifactFile(path=row.path, body=b64(row.body) if row.body is not None else None, mode=row.mode)
        for row in rows
    ]
