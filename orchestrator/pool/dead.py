"""What could not be used: messages with their reason, and groups of which a rollout used up its attempts."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import delete, func, literal_column, or_, select, text
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import GroupState
from orchestrator.pool import history
from orchestrator.pool.clean import clean
from orchestrator.pool.tables import attempts, dead_letters, groups, resumes, rollouts, submissions, tasks


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that cannot be used, whole. `run_id` is None where its subject names no run of this database."""

    run_id: int | None
    stream: str
    subject: str
    schema: str | None
    msg_id: str | None
    reason: str
    deliveries: int
    body: bytes


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message as it arrived. `run_id` is None where its subject names no run of this database."""

    number: int
    run_id: int | None
    at: datetime
    stream: str
    subject: str
    schema: str | None
    msg_id: str | None
    reason: str
    deliveries: int
    body: bytes

    @property
    def in_part(self) -> bool:
        """Whether `body` is only the beginning of what arrived."""
        return _IN_PART.search(self.reason) is not None


@dataclass(frozen=True, slots=True)
class DeadAttempt:
    """One attempt of a dead group, with the end of its log. `resumes`: how often it went on from its recorded steps, why and to what end."""

    rollout_id: int
    attempt: int
    failure_class: str | None
    reason: str | None
    runner: str | None
    steps: int | None
    log: str | None
    resumes: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """A group that was given up; `body` is its task as it was submitted."""

    group_id: int
    at: datetime | None
    submission: str
    task: str
    domain: str
    purpose: str
    scaffold: str
    size: int
    label: str | None
    version: int | None
    sampling: dict[str, Any] | None
    reason: str
    body: dict[str, Any]


_IN_PART = re.compile(r" \(the first [0-9,]+ of [0-9,]+ bytes are kept\)\Z")


def in_part(kept: int, whole: int) -> str:
    """What the reason of a message ends with that is kept in part: `kept` of `whole` bytes.

    >>> in_part(3, 1000)
    ' (the first 3 of 1,000 bytes are kept)'
    """
    return f" (the first {kept:,} of {whole:,} bytes are kept)"


async def dead_messages(
    connection: AsyncConnection, run_id: int, number: int | None = None
) -> list[DeadMessage]:
    """The run's, and those of no run at all, oldest first; with `number`, that one or none."""
    table = dead_letters.c
    query = select(
        table.dead_letter_id, table.run_id, table.at, table.stream, table.subject, table.schema, table.msg_id, table.reason,
        table.deliveries, table.body,
    ).where(or_(table.run_id == run_id, table.run_id.is_(None))).order_by(table.dead_letter_id)  # fmt: skip
    if number is not None:
        query = query.where(table.dead_letter_id == number)
    return [DeadMessage(*tuple(row)) for row in await connection.execute(query)]


async def dead_groups(connection: AsyncConnection, run_id: int, number: int | None = None) -> list[DeadGroup]:
    """The run's, oldest first; with `number`, that one or none."""
    table = groups.c
    query = (
        select(
            table.group_id, table.ended, table.submission, tasks.c.name, table.domain, table.purpose, table.scaffold, table.size,
            table.label, table.pinned_version, table.sampling, table.reason, tasks.c.body,
        )
        .join(tasks, tasks.c.task_id == table.task_id)
        .where(table.run_id == run_id, table.state == GroupState.DEAD)
        .order_by(table.group_id)
    )  # fmt: skip
    if number is not None:
        query = query.where(table.group_id == number)
    return [DeadGroup(*tuple(row)) for row in await connection.execute(query)]


async def attempts_of(connection: AsyncConnection, group_id: int) -> Sequence[DeadAttempt]:
    """Every attempt of a group's rollouts, in order."""
    table, resume = attempts.c, resumes.c
    shown = [resume.epoch, resume.reason, resume.steps, resume.replayed, resume.replay]
    pairs: list[Any] = []
    for column in shown:
        pairs += [literal_column(f"'{column.name}'"), column]
    in_order = func.jsonb_agg(aggregate_order_by(func.jsonb_build_object(*pairs), resume.epoch))
    resumed = (
        select(func.coalesce(in_order, text("'[]'"), type_=JSONB))
        .where(resume.rollout_id == table.rollout_id, resume.attempt == table.attempt)
        .scalar_subquery()
    )  # fmt: skip
    query = (
        select(
            table.rollout_id, table.attempt, table.failure_class, table.reason, table.runner, table.steps, table.log, resumed
        )
        .join(rollouts, rollouts.c.rollout_id == table.rollout_id)
        .where(rollouts.c.group_id == group_id)
        .order_by(table.rollout_id, table.attempt)
    )  # fmt: skip
    return [DeadAttempt(*row) for row in await connection.execute(query)]


RETRY = r":retry-[0-9]+$"
"""What `next_retry` puts behind a submission, in Python's regular expressions and in PostgreSQL's."""


def tried(submission: str) -> str:
    """The submission of which this one is a retry, or itself.

    >>> tried("eval:held:7:1:abc:retry-12"), tried("eval:held:7:1:abc")
    ('eval:held:7:1:abc', 'eval:held:7:1:abc')
    """
    return re.sub(RETRY, "", submission)


async def next_retry(connection: AsyncConnection, run_id: int, submission: str) -> str:
    """The submission under which a dead one is tried again: `<submission>:retry-<n>`. What it became itself stays on record."""
    first = tried(submission)
    known = await connection.scalar(
        select(func.count()).where(
            submissions.c.run_id == run_id, submissions.c.submission.startswith(f"{first}:retry-", autoescape=True)
        )
    )  # fmt: skip
    return f"{first}:retry-{int(known or 0) + 1}"


async def keep(connection: AsyncConnection, letter: Letter, *, counted: int) -> bool:
    """Keep what cannot be used; False, and nothing is counted, when it is kept already. It is counted for the run `counted`, under
    `<stream>_refused`."""
    values = {
        **asdict(letter),
        "schema": clean(letter.schema) if letter.schema else None,
        "subject": clean(letter.subject),
        "msg_id": clean(letter.msg_id) if letter.msg_id else None,
        "reason": clean(letter.reason),
    }
    once = (
        insert(dead_letters).values(values).on_conflict_do_nothing().returning(dead_letters.c.dead_letter_id)
    )
    new = await connection.scalar(once) is not None
    if new:
        await history.count(connection, counted, f"{letter.stream.lower()}_refused")
    return new


async def keep_unsendable(
    connection: AsyncConnection, run_id: int, subject: str, schema: str, msg_id: str, body: bytes, reason: str
) -> None:
    """A message that its sender could never send."""
    stream = subject.partition(".")[0].upper()
    await keep(connection, Letter(run_id, stream, subject, schema, msg_id, reason, 0, body), counted=run_id)


async def drop_message(
    connection: AsyncConnection,
    run_id: int,
    number: int,
    what: Literal["dropped", "retried"],
    by: str,
    why: str,
) -> bool:
    """Delete a dead message, and leave in the history of the run what it was, and who did that and why. False when the
    run has none of that number: another run's is not touched."""
    table = dead_letters.c
    gone = (
        await connection.execute(
            delete(dead_letters)
            .where(table.dead_letter_id == number, or_(table.run_id == run_id, table.run_id.is_(None)))
            .returning(table.subject, table.msg_id, table.reason)
        )
    ).first()
    if gone is None:
        return False
    reason = f"{what} by {by}: {why}; it was {gone.subject} {gone.msg_id or '(no id)'}: {gone.reason}"
    await history.born(connection, run_id, "message", number, what, reason=reason)
    return True
