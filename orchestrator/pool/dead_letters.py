"""Dead letters: messages that could not be used, with their reason, and groups with a rollout that used up its attempts."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, delete, func, literal_column, or_, select, text
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.ids import sha256
from orchestrator.contracts.limits import MAX_SUBMISSION
from orchestrator.contracts.states import Entity, FailureClass, GroupState, Purpose
from orchestrator.pool import transitions
from orchestrator.pool.counter_names import NAMES, OTHER, REFUSED
from orchestrator.pool.rows import from_row
from orchestrator.pool.sanitize import clean
from orchestrator.pool.tables import attempts, dead_letters, groups, resumes, rollouts, submissions, tasks


class LetterEnd(StrEnum):
    """Why a message is no longer a dead letter."""

    DROPPED = "dropped"
    RETRIED = "retried"  # it was published again


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A complete message that cannot be used. `run_id` is None if its subject names no run of this database."""

    run_id: int | None
    stream: str
    subject: str
    schema: str | None
    msg_id: str | None
    reason: str
    deliveries: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A message as it arrived. `run_id` is None if its subject names no run of this database."""

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
        """Whether `body` is only the beginning of the original body."""
        return _IN_PART.search(self.reason) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadAttempt:
    """One attempt of a dead group, with the end of its log. `resumes`: how often it continued from its recorded steps, with reason and result."""

    rollout_id: int
    attempt: int
    failure_class: FailureClass | None
    reason: str | None
    runner: str | None
    steps: int | None
    log: str | None
    resumes: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """A group that became dead; `body` is its task as submitted."""

    group_id: int
    at: datetime | None
    submission: str
    task: str
    domain: str
    purpose: Purpose
    scaffold: str
    size: int
    label: str | None
    version: int | None
    sampling: dict[str, Any] | None
    reason: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLine:
    """A dead message (`m7`) or a dead group (`g7`) in a list, without its body."""

    letter: str
    at: datetime | None
    what: str
    reason: str


_IN_PART = re.compile(r" \(the first [0-9,]+ of [0-9,]+ bytes are kept\)\Z")


def in_part(kept: int, whole: int) -> str:
    """The end of the reason of a truncated message: `kept` of `whole` bytes are kept.

    >>> in_part(3, 1000)
    ' (the first 3 of 1,000 bytes are kept)'
    """
    return f" (the first {kept:,} of {whole:,} bytes are kept)"


async def dead_messages(
    connection: AsyncConnection, run_id: int, number: int | None = None
) -> list[DeadMessage]:
    """Dead messages of the run and of no run, oldest first. With `number`, only that message."""
    table = dead_letters.c
    query = (
        select(
            table.dead_letter_id.label("number"),
            table.run_id,
            table.at,
            table.stream,
            table.subject,
            table.schema,
            table.msg_id,
            table.reason,
            table.deliveries,
            table.body,
        )
        .where(_of(run_id))
        .order_by(table.dead_letter_id)
    )
    if number is not None:
        query = query.where(table.dead_letter_id == number)
    return [from_row(DeadMessage, row) for row in await connection.execute(query)]


async def dead_lines(connection: AsyncConnection, run_id: int) -> list[DeadLine]:
    """The messages of `dead_messages` and after them the groups of `dead_groups`. Reads no body: one may have 64 MB."""
    letter, table = dead_letters.c, groups.c
    messages = (
        select(letter.dead_letter_id, letter.at, letter.subject, letter.reason)
        .where(_of(run_id))
        .order_by(letter.dead_letter_id)
    )
    ended = (
        select(
            table.group_id,
            table.ended,
            table.submission,
            tasks.c.name,
            table.scaffold,
            func.coalesce(table.reason, ""),
        )
        .join(tasks, tasks.c.task_id == table.task_id)
        .where(table.run_id == run_id, table.state == GroupState.DEAD)
        .order_by(table.group_id)
    )
    return [
        DeadLine(letter=f"m{number}", at=at, what=f"message {subject}", reason=reason)
        for number, at, subject, reason in await connection.execute(messages)
    ] + [
        DeadLine(letter=f"g{number}", at=at, what=f"group {submission} ({name}, {scaffold})", reason=reason)
        for number, at, submission, name, scaffold, reason in await connection.execute(ended)
    ]


def _of(run_id: int) -> ColumnElement[bool]:
    """The condition for dead messages of the run and of no run."""
    return or_(dead_letters.c.run_id == run_id, dead_letters.c.run_id.is_(None))


async def dead_groups(connection: AsyncConnection, run_id: int, number: int | None = None) -> list[DeadGroup]:
    """Dead groups of the run, oldest first. With `number`, only that group."""
    table = groups.c
    query = (
        select(
            table.group_id,
            table.ended.label("at"),
            table.submission,
            tasks.c.name.label("task"),
            table.domain,
            table.purpose,
            table.scaffold,
            table.size,
            table.label,
            table.pinned_version.label("version"),
            table.sampling,
            table.reason,
            tasks.c.body,
        )
        .join(tasks, tasks.c.task_id == table.task_id)
        .where(table.run_id == run_id, table.state == GroupState.DEAD)
        .order_by(table.group_id)
    )
    if number is not None:
        query = query.where(table.group_id == number)
    return [from_row(DeadGroup, row) for row in await connection.execute(query)]


async def attempts_of(connection: AsyncConnection, group_id: int) -> Sequence[DeadAttempt]:
    """Every attempt of a group's rollouts, in order."""
    table, resume = attempts.c, resumes.c
    columns = [resume.epoch, resume.reason, resume.steps, resume.replayed, resume.replay]
    pairs: list[Any] = []
    for column in columns:
        pairs += [literal_column(f"'{column.name}'"), column]
    attempts_json = func.jsonb_agg(aggregate_order_by(func.jsonb_build_object(*pairs), resume.epoch))
    resumed = (
        select(func.coalesce(attempts_json, text("'[]'"), type_=JSONB))
        .where(resume.rollout_id == table.rollout_id, resume.attempt == table.attempt)
        .scalar_subquery()
    )
    query = (
        select(
            table.rollout_id,
            table.attempt,
            table.failure_class,
            table.reason,
            table.runner,
            table.steps,
            table.log,
            resumed.label("resumes"),
        )
        .join(rollouts, rollouts.c.rollout_id == table.rollout_id)
        .where(rollouts.c.group_id == group_id)
        .order_by(table.rollout_id, table.attempt)
    )
    return [from_row(DeadAttempt, row) for row in await connection.execute(query)]


_RETRY = r"[:]retry-[0-9]+$"
"""The suffix that `next_retry` adds to a submission, as a regular expression for Python and PostgreSQL. SQLAlchemy takes `:retry` for a parameter."""
_LONGEST = MAX_SUBMISSION - len(":retry-99999")
_KEPT, _DIGITS = 95, 16


def tried(submission: str) -> str:
    """The submission that this one retries, or the submission itself. One that has no place for the suffix ends in a hash instead.

    >>> tried("eval:held:7:1:abc:retry-12"), tried("eval:held:7:1:abc")
    ('eval:held:7:1:abc', 'eval:held:7:1:abc')
    >>> len(tried("x" * 128)), tried(f"{tried('x' * 128)}:retry-1") == tried("x" * 128)
    (112, True)
    """
    first = re.sub(_RETRY, "", submission)
    return first if len(first) <= _LONGEST else f"{first[:_KEPT]}:{sha256(first.encode()).hex()[:_DIGITS]}"


def tried_sql(submission: str) -> str:
    """`tried` in SQL, without parameters. `submission`: an expression."""
    first = f"regexp_replace({submission}, '{_RETRY}', '')"
    digest = f"encode(sha256(convert_to({first}, 'UTF8')), 'hex')"
    short = f"left({first}, {_KEPT}) || ':' || left({digest}, {_DIGITS})"
    return f"(case when length({first}) > {_LONGEST} then {short} else {first} end)"


async def next_retry(connection: AsyncConnection, run_id: int, submission: str) -> str:
    """The submission for a retry of a dead one: `<tried>:retry-<n>`. The original outcome stays on record."""
    first = tried(submission)
    retries = await connection.scalar(
        select(func.count()).where(
            submissions.c.run_id == run_id,
            submissions.c.submission.startswith(f"{first}:retry-", autoescape=True),
        )
    )
    return f"{first}:retry-{int(retries or 0) + 1}"


async def store(connection: AsyncConnection, letter: Letter, *, counted: int) -> bool:
    """Store a message that cannot be used. False, without counting, if it is stored already. It is counted for the run `counted`, under
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
        await transitions.count(connection, counted, f"{letter.stream.lower()}_refused")
    return new


async def keep_unsendable(
    connection: AsyncConnection, run_id: int, subject: str, schema: str, msg_id: str, body: bytes, reason: str
) -> None:
    """Store a message that its sender could never send. That of a subject without a stream has the stream `OTHER`."""
    stream = subject.partition(".")[0].upper()
    if f"{stream.lower()}{REFUSED}" not in NAMES:
        stream = OTHER
    await store(
        connection,
        Letter(
            run_id=run_id,
            stream=stream,
            subject=subject,
            schema=schema,
            msg_id=msg_id,
            reason=reason,
            deliveries=0,
            body=body,
        ),
        counted=run_id,
    )


async def drop_message(
    connection: AsyncConnection,
    run_id: int,
    number: int,
    end: LetterEnd,
    by: str,
    why: str,
) -> bool:
    """Delete a dead message, and record in the history of the run its content, who deleted it and why. False if the
    run has no message of that number: messages of other runs are never touched."""
    table = dead_letters.c
    dropped = (
        await connection.execute(
            delete(dead_letters)
            .where(table.dead_letter_id == number, _of(run_id))
            .returning(table.subject, table.msg_id, table.reason)
        )
    ).first()
    if dropped is None:
        return False
    reason = f"{end} by {by}: {why}; it was {dropped.subject} {dropped.msg_id or '(no id)'}: {dropped.reason}"
    await transitions.record_created(connection, run_id, Entity.MESSAGE, number, end, reason=reason)
    return True
