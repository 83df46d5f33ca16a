"""Dead letters: unusable messages and groups that failed for good, newest first; and the actions of people."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.dead_letters import LetterKind, parse_letter
from orchestrator.contracts.errors import NotFoundError
from orchestrator.contracts.quote import quoted
from orchestrator.pool.dead_letters import DeadAttempt, attempts_of, dead_groups, dead_messages
from orchestrator.pool.rows import from_row

BODY = 64 * 1024  # characters of a body that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterLine:
    """`letter`: m7 is a message, g7 a group. `at`: seconds since 1970. `bytes`: of a message's body."""

    letter: str
    at: float
    what: str
    reason: str
    bytes: int | None
    deliveries: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterDetail:
    """One dead letter in full. `body`: readable, cut at `BODY` characters (`cut` is true then)."""

    letter: str
    at: float | None
    what: str
    reason: str
    body: str
    cut: bool
    attempts: Sequence[DeadAttempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionLine:
    """An action of a person. `before` and `after`: JSON values."""

    action_id: int
    at: float
    who: str
    what: str
    target: str
    before: Any
    after: Any
    reason: str


_MESSAGES = text(
    """
    SELECT 'm' || dead_letter_id AS letter, extract(epoch FROM at)::float8 AS at, 'message ' || left(subject, 200) AS what,
           left(reason, 500) AS reason, length(body) AS bytes, deliveries
    FROM dead_letters WHERE (run_id = :run OR run_id IS NULL) AND dead_letter_id < :before ORDER BY dead_letter_id DESC LIMIT :limit
    """
)
_GROUPS = text(
    """
    SELECT 'g' || g.group_id AS letter, coalesce(extract(epoch FROM g.ended), 0)::float8 AS at,
           'group ' || g.group_id || ': ' || left(t.name, 120) || ', ' || g.scaffold AS what, left(coalesce(g.reason, ''), 500) AS reason,
           NULL::int AS bytes, NULL::int AS deliveries
    FROM groups g JOIN tasks t USING (task_id) WHERE g.run_id = :run AND g.state = 'dead' AND g.group_id < :before
    ORDER BY g.group_id DESC LIMIT :limit
    """
)
_ALL_MESSAGES = text("SELECT count(*) FROM dead_letters WHERE run_id = :run OR run_id IS NULL")
_ALL_GROUPS = text("SELECT count(*) FROM groups WHERE run_id = :run AND state = 'dead'")
_ACTIONS = text(
    """
    SELECT action_id, extract(epoch FROM at)::float8 AS at, who, what, target, before, after, reason FROM actions
    WHERE run_id = :run AND action_id < :before ORDER BY action_id DESC LIMIT :limit
    """
)
_END = 2**63 - 1


async def letters(
    connection: AsyncConnection, run_id: int, kind: LetterKind, *, before: int | None = None, limit: int = 50
) -> list[LetterLine]:
    """The newest dead letters of one kind with a number below `before`."""
    statement = _MESSAGES if kind is LetterKind.MESSAGE else _GROUPS
    found = await connection.execute(statement, {"run": run_id, "before": before or _END, "limit": limit})
    return [from_row(LetterLine, row) for row in found]


async def count_messages(connection: AsyncConnection, run_id: int) -> int:
    """The number of dead messages of the run and of no run."""
    return int(await connection.scalar(_ALL_MESSAGES, {"run": run_id}) or 0)


async def count_groups(connection: AsyncConnection, run_id: int) -> int:
    """The number of dead groups."""
    return int(await connection.scalar(_ALL_GROUPS, {"run": run_id}) or 0)


async def letter(connection: AsyncConnection, run_id: int, name: str) -> DeadLetterDetail:
    """One dead letter in full. Raises NotFoundError if it does not exist."""
    kind, number = parse_letter(name) or (None, 0)
    if kind is LetterKind.MESSAGE:
        for message in await dead_messages(connection, run_id, number):
            body = _readable(message.body)
            return DeadLetterDetail(
                letter=name,
                at=message.at.timestamp(),
                what=f"message {message.subject}",
                reason=message.reason,
                body=body[:BODY],
                cut=len(body) > BODY,
                attempts=[],
            )
    if kind is LetterKind.GROUP:
        for group in await dead_groups(connection, run_id, number):
            body = json.dumps(group.body, indent=2, ensure_ascii=False)
            at = group.at.timestamp() if group.at else None
            description = f"group {number}: {group.task}, {group.scaffold}"
            return DeadLetterDetail(
                letter=name,
                at=at,
                what=description,
                reason=group.reason,
                body=body[:BODY],
                cut=len(body) > BODY,
                attempts=await attempts_of(connection, number),
            )
    raise NotFoundError(f"dead letter {quoted(name)} does not exist")


async def actions(
    connection: AsyncConnection, run_id: int, *, before: int | None = None, limit: int = 50
) -> list[ActionLine]:
    """The newest actions of people with an id below `before`."""
    found = await connection.execute(_ACTIONS, {"run": run_id, "before": before or _END, "limit": limit})
    return [from_row(ActionLine, row) for row in found]


def _readable(body: bytes) -> str:
    """A JSON body indented, any other body as text."""
    if len(body) <= 4 * BODY:
        try:
            return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        except ValueError:
            pass
    return body[: 4 * BODY].decode("utf-8", "backslashreplace")
