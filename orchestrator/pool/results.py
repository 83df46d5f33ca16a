"""Results of rollouts: the runner's announcement, whether everything announced has arrived, and the verdict.

A rollout is complete only when every step it announced is in the data pool with the announced digest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Table, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.events import ArtifactFile, RolloutFinished, ToolCallTimed, VerdictReached
from orchestrator.contracts.ids import b64, unb64
from orchestrator.contracts.states import FailureClass, Left, Purpose, RolloutState
from orchestrator.pool import resumes, transitions
from orchestrator.pool.rows import from_row, from_wide_row, member
from orchestrator.pool.sanitize import clean
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
from orchestrator.settings.timeouts import timeouts


async def report(connection: AsyncConnection, run_id: int, event: RolloutFinished) -> bool:
    """RUNNING → REPORTED with everything that the runner announced. False (counted) for a stale epoch or a repeat."""
    moved = await transitions.move_rollout(
        connection,
        event.rollout,
        RolloutState.RUNNING,
        RolloutState.REPORTED,
        run_id=run_id,
        attempt=event.attempt,
        epoch=event.epoch,
        reason=event.failure_class,
        # The orchestrator owns the lease of a reported rollout: it expires if the announced steps never arrive.
        values={
            "lease_owner": None,
            "lease_until": func.clock_timestamp() + timedelta(seconds=timeouts().arrival_s),
        },
    )
    if not moved:
        await transitions.count(connection, run_id, "results_stale")
        return False
    await connection.execute(
        update(attempts)
        .where(attempts.c.rollout_id == event.rollout, attempts.c.attempt == event.attempt)
        .values(ended=func.clock_timestamp(), **_announced(event))
    )
    if event.replay is not None:
        await resumes.record_result(
            connection, run_id, event.rollout, event.epoch, event.replay, event.replayed
        )
    keys: dict[str, Any] = {"run_id": run_id, "rollout_id": event.rollout, "attempt": event.attempt}
    # While a step may be replayed, it is open whether it reached its harness. The result that ends the attempt decides.
    marks = () if event.resumable else event.marks
    await _insert(
        connection,
        step_marks,
        [keys | {"idx": mark.idx, "reason": clean(mark.reason)} for mark in marks],
    )
    await _insert(connection, artifacts, [keys | _artifact(file) for file in event.artifacts])
    # A resumed attempt executes the tools of all its steps again, and the policy goes on with these results: some of the earlier ones were cut off.
    await _replace(connection, tool_calls, [keys | _tool_call(call) for call in event.tool_calls])
    return True


async def _insert(connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows that the table does not have yet."""
    if rows:
        await connection.execute(insert(table).on_conflict_do_nothing(), rows)


async def _replace(connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows; those of the same keys that the table has get these values."""
    if rows:
        statement = insert(table)
        values = {column.name: column for column in statement.excluded if not column.primary_key}
        await connection.execute(
            statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=values), rows
        )


def _announced(event: RolloutFinished) -> dict[str, Any]:
    """The columns of the attempt that the runner announces."""
    return {
        "failure_class": event.failure_class,
        "reason": _cleaned(event.reason),
        "steps": event.steps,
        "last_idx": event.last_idx,
        "digest": bytes.fromhex(event.digest) if event.digest else None,
        "answer": _cleaned(event.answer),
        "agent_s": event.agent_s,
        "queued_s": event.queued_s,
        "generation_s": event.generation_s,
        "waiting_s": event.waiting_s,
        "system": _cleaned(event.system),
        "log": clean(event.log),
        "scaffold": event.scaffold,
        "scaffold_version": event.scaffold_version,
        "scaffold_sha": event.scaffold_sha,
        "resumable": event.resumable,
        "spent": event.spent or None,
        "ungradable": _cleaned(event.ungradable),
    }


def _artifact(file: ArtifactFile) -> dict[str, Any]:
    return {
        "path": clean(file.path),
        "mode": file.mode,
        "body": unb64(file.body) if file.body is not None else None,
        "kind": file.kind,
        "why": _cleaned(file.why),
        "step": file.step,
        "parts": [bytes.fromhex(sha) for sha in file.parts] or None,
        "size": file.size if file.parts else None,
    }


def _tool_call(call: ToolCallTimed) -> dict[str, Any]:
    return {
        "idx": call.step,
        "call": call.call,
        "name": clean(call.name),
        "start_s": call.start,
        "end_s": call.end,
        "exit_code": call.exit,
        "bytes": call.bytes,
    }


def _cleaned(value: str | None) -> str | None:
    return None if value is None else clean(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A reported attempt: the announced and the arrived steps."""

    rollout_id: int
    group_id: int
    attempt: int
    epoch: int
    purpose: Purpose
    failure_class: FailureClass
    reason: str | None
    resumable: bool
    announced: int
    arrived: int
    digest_matches: bool  # over all steps together; each step also matches its parent, delta and action


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
            from_wide_row(
                Reported,
                row,
                epoch=row.lease_epoch,
                failure_class=FailureClass(row.failure_class),
                announced=row.steps or 0,
                arrived=arrived.n,
                digest_matches=matches,
            )
        )
    return found


async def finish(
    connection: AsyncConnection, rollout_id: int, epoch: int, failure: FailureClass
) -> int | None:
    """REPORTED → FINISHED under a new epoch for the verification. None if the race was lost."""
    moved = await transitions.move_rollout(
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
    attempt: int,
    epoch: int,
    *,
    reason: str,
    delay_s: float,
    tried: bool = True,
) -> tuple[int, int] | None:
    """VERIFYING → FINISHED under a new epoch: (tries so far, new epoch), or None if the race was lost. `tried`: count this try."""
    moved = await transitions.move_rollout(
        connection,
        rollout_id,
        RolloutState.VERIFYING,
        RolloutState.FINISHED,
        run_id=run_id,
        attempt=attempt,
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
    return await verify_tries(connection, rollout_id), epoch + 1


async def verify_tries(connection: AsyncConnection, rollout_id: int) -> int:
    """How many verifications of the attempt have failed so far."""
    tries = await connection.scalar(
        select(rollouts.c.verify_tries).where(rollouts.c.rollout_id == rollout_id)
    )
    return int(tries or 0)


async def verdict(connection: AsyncConnection, run_id: int, event: VerdictReached) -> bool:
    """VERIFYING → VERIFIED with the verdict's row. False (counted) for a stale epoch or a repeat."""
    assert event.reward is not None
    moved = await transitions.move_rollout(
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
        await transitions.count(connection, run_id, "verdicts_stale")
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
            process=event.process,
            components=event.components,
        )
    )
    return True


async def ungradable_of(connection: AsyncConnection, rollout_id: int, attempt: int) -> str | None:
    """Why nothing that the attempt left can be graded, so that its verdict is 0. None: it can be graded."""
    query = select(attempts.c.ungradable)
    found = query.where(attempts.c.rollout_id == rollout_id, attempts.c.attempt == attempt)
    return (await connection.execute(found)).scalar()


async def artifacts_of(
    connection: AsyncConnection, rollout_id: int, attempt: int
) -> tuple[str | None, list[ArtifactFile]]:
    """The attempt's answer and the files for verification."""
    answer = await connection.scalar(
        select(attempts.c.answer).where(attempts.c.rollout_id == rollout_id, attempts.c.attempt == attempt)
    )
    rows = await connection.execute(
        select(
            artifacts.c.path,
            artifacts.c.body,
            artifacts.c.mode,
            artifacts.c.kind,
            artifacts.c.why,
            artifacts.c.step,
            artifacts.c.parts,
            artifacts.c.size,
        )
        .where(artifacts.c.rollout_id == rollout_id, artifacts.c.attempt == attempt)
        .order_by(artifacts.c.step, artifacts.c.path)
    )
    return answer, [
        from_row(
            ArtifactFile,
            row,
            body=b64(row.body) if row.body is not None else None,
            kind=member(Left, row.kind),
            parts=[sha.hex() for sha in row.parts or ()],
            size=row.size or 0,
        )
        for row in rows
    ]
