"""Accepting submissions: one task message = one group = one terminal state. The same submission again is a no-op."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import GroupState, Purpose, RolloutState
from orchestrator.pool import history
from orchestrator.pool.clean import clean
from orchestrator.pool.tables import groups, rollouts, runs, submissions, tasks

MAX_SEED = 2**62


@dataclass(frozen=True, slots=True)
class NewGroup:
    """What intake makes of one valid task message. `seed` derives every member's sampling seed."""

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


@dataclass(frozen=True, slots=True)
class Answer:
    """The fate of a submission: `status` is accepted or rejected; `new` is False for a repeated one."""

    submission: str
    status: str
    reason: str
    new: bool


async def answered(connection: AsyncConnection, run_id: int, submission: str) -> Answer | None:
    """The stored answer to a submission, if there is one."""
    row = (
        await connection.execute(
            select(submissions).where(submissions.c.run_id == run_id, submissions.c.submission == submission)
        )
    ).first()
    return Answer(submission, row.status, row.reason or "", new=False) if row else None


async def _claim_name(
    connection: AsyncConnection, run_id: int, submission: str, status: str, reason: str | None
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
    if await _claim_name(connection, run_id, submission, "rejected", reason):
        return Answer(submission, "rejected", reason, new=True)
    known = await answered(connection, run_id, submission)
    assert known is not None
    return known


async def forget_rejection(connection: AsyncConnection, run: str, submission: str) -> None:
    """Let a rejected submission of the run of that name be judged anew when it comes again. An accepted one stays what it is."""
    table = submissions.c
    run_id = select(runs.c.run_id).where(runs.c.name == run).scalar_subquery()
    mine = (table.run_id == run_id, table.submission == submission, table.status == "rejected")
    await connection.execute(delete(submissions).where(*mine))


async def accept(connection: AsyncConnection, run_id: int, new: NewGroup) -> Answer:
    """Insert task, group and rollouts, unless the submission was answered before."""
    if not await _claim_name(connection, run_id, new.submission, "accepted", None):
        known = await answered(connection, run_id, new.submission)
        assert known is not None
        return known
    task_id = await connection.scalar(
        insert(tasks)
        .values(
            run_id=run_id,
            sha=new.task_sha,
            name=new.task_name,
            domain=new.domain,
            settings=new.settings,
            body=new.body,
        )
        .on_conflict_do_nothing()
        .returning(tasks.c.task_id)
    )
    if task_id is None:
        task_id = await connection.scalar(
            select(tasks.c.task_id).where(tasks.c.run_id == run_id, tasks.c.sha == new.task_sha)
        )
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
    await history.born(connection, run_id, "group", group_id, GroupState.ACCEPTED)
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
    await history.born_all(connection, run_id, "rollout", rows.scalars().all(), RolloutState.WAITING)
    return Answer(new.submission, "accepted", "", new=True)
