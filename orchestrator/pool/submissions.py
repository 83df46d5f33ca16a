"""Accepting submissions: one task message = one group = one terminal state. A repeated submission is a no-op."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import Entity, GroupState, Purpose, RolloutState, SubmissionStatus
from orchestrator.pool import transitions
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.sanitize import clean, clean_json
from orchestrator.pool.tables import groups, rollouts, runs, submissions, tasks

MAX_SEED = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGroup:
    """The result of intake for one valid task message. `seed` derives every member's sampling seed."""

    submission: str
    task_sha: bytes
    task_name: str
    domain: str
    settings: dict[str, Any]
    body: dict[str, Any]
    purpose: Purpose
    scaffold: str
    size: int
    seed: int
    label: str | None = None
    pinned_version: int | None = None
    sampling: dict[str, float] | None = None
    pool: str = "default"
    difficulty: str | None = None  # of a training task, in a run of several stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The fate of a submission: `reason` is None unless it is rejected; `new` is False for a repeated submission."""

    submission: str
    status: SubmissionStatus
    reason: str | None
    new: bool


async def answered(connection: AsyncConnection, run_id: int, submission: str) -> Answer | None:
    """The stored answer to a submission, or None."""
    row = (
        await connection.execute(
            select(submissions).where(submissions.c.run_id == run_id, submissions.c.submission == submission)
        )
    ).first()
    return from_wide_row(Answer, row, new=False) if row else None


async def _claim_name(
    connection: AsyncConnection, run_id: int, submission: str, status: SubmissionStatus, reason: str | None
) -> bool:
    statement = (
        insert(submissions)
        .values(run_id=run_id, submission=submission, status=status, reason=reason)
        .on_conflict_do_nothing()
        .returning(submissions.c.submission)
    )
    return (await connection.execute(statement)).first() is not None


async def reject(connection: AsyncConnection, run_id: int, submission: str, reason: str) -> Answer:
    """Record that a submission is refused, unless it was answered before."""
    reason = clean(reason)
    if await _claim_name(connection, run_id, submission, SubmissionStatus.REJECTED, reason):
        return Answer(submission=submission, status=SubmissionStatus.REJECTED, reason=reason, new=True)
    recorded = await answered(connection, run_id, submission)
    assert recorded is not None
    return recorded


async def forget_rejection(connection: AsyncConnection, run: str, submission: str) -> None:
    """Let a rejected submission of the run of that name be judged again at its next arrival. An accepted submission is unchanged."""
    table = submissions.c
    run_id = select(runs.c.run_id).where(runs.c.name == run).scalar_subquery()
    conditions = (
        table.run_id == run_id,
        table.submission == submission,
        table.status == SubmissionStatus.REJECTED,
    )
    await connection.execute(delete(submissions).where(*conditions))


async def accept(connection: AsyncConnection, run_id: int, new: NewGroup) -> Answer:
    """Insert task, group and rollouts, unless the submission was answered before."""
    if not await _claim_name(connection, run_id, new.submission, SubmissionStatus.ACCEPTED, None):
        recorded = await answered(connection, run_id, new.submission)
        assert recorded is not None
        return recorded
    task_id = await _stored_task(connection, run_id, new)
    group_id = await connection.scalar(
        insert(groups)
        .values(
            run_id=run_id,
            submission=new.submission,
            task_id=task_id,
            domain=new.domain,
            purpose=new.purpose,
            label=new.label,
            scaffold=new.scaffold,
            size=new.size,
            pinned_version=new.pinned_version,
            sampling=new.sampling,
            difficulty=new.difficulty,
        )
        .returning(groups.c.group_id)
    )
    assert group_id is not None
    await transitions.record_created(connection, run_id, Entity.GROUP, group_id, GroupState.ACCEPTED)
    rows = await connection.execute(
        insert(rollouts)
        .values(
            [
                {
                    "run_id": run_id,
                    "group_id": group_id,
                    "member": member,
                    "pool": new.pool,
                    "seed": (new.seed + member) % MAX_SEED,
                }
                for member in range(new.size)
            ]
        )
        .returning(rollouts.c.rollout_id)
    )
    await transitions.record_all_created(
        connection, run_id, Entity.ROLLOUT, rows.scalars().all(), RolloutState.WAITING
    )
    return Answer(submission=new.submission, status=SubmissionStatus.ACCEPTED, reason=None, new=True)


async def _stored_task(connection: AsyncConnection, run_id: int, new: NewGroup) -> int:
    """The id of the group's task, which is stored once a run."""
    task_id = await connection.scalar(
        insert(tasks)
        .values(
            run_id=run_id,
            sha=new.task_sha,
            name=clean(new.task_name),
            domain=new.domain,
            settings=clean_json(new.settings),
            body=new.body,
        )
        .on_conflict_do_nothing()
        .returning(tasks.c.task_id)
    )
    if task_id is None:
        task_id = await connection.scalar(
            select(tasks.c.task_id).where(tasks.c.run_id == run_id, tasks.c.sha == new.task_sha)
        )
    assert task_id is not None
    return int(task_id)
