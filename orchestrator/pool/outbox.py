"""The outbox: messages that a committed state change must send to the bus.

`enqueue` is called inside the transaction of the state change. The relay takes rows with SKIP LOCKED (never `id > last`) for a while, publishes
them outside of any transaction, and deletes acknowledged rows. A crash in between publishes twice; the message id and unique keys make the
second publish a no-op. `not_before` is the earliest time to take a row: a delay, a pause after a refusal, or the end of another relay's turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from sqlalchemy import delete, func, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.events import Event
from orchestrator.pool.rows import from_wide_row
from orchestrator.pool.tables import outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """One unpublished message; `msg_id` is deterministic, so that a second publish is de-duplicated.

    Row ids start again in a new database. The row's creation time keeps it distinct from a row that the bus saw from another database.
    """

    outbox_id: int
    run_id: int
    subject: str
    schema: str
    body: bytes
    revision: int
    born_us: int  # microseconds since the epoch

    @property
    def msg_id(self) -> str:
        return f"outbox:{self.run_id}:{self.outbox_id}:{self.born_us}"


async def enqueue(
    connection: AsyncConnection,
    run_id: int,
    subject: str,
    event: Event,
    *,
    revision: int = 0,
    delay_s: float = 0.0,
) -> None:
    """Insert `event` for `subject`; it may be published after `delay_s` seconds."""
    await enqueue_all(connection, run_id, [(subject, event)], revision=revision, delay_s=delay_s)


async def enqueue_all(
    connection: AsyncConnection,
    run_id: int,
    messages: Sequence[tuple[str, Event]],
    *,
    revision: int = 0,
    delay_s: float = 0.0,
) -> None:
    """`enqueue` for many (subject, event) pairs: 100,000 take seconds."""
    if not messages:
        return
    now = await connection.scalar(select(func.clock_timestamp())) if delay_s > 0 else None
    await connection.execute(
        insert(outbox),
        [
            {
                "run_id": run_id,
                "subject": subject,
                "schema": event.schema(),
                "body": msgspec.to_builtins(event),
                "revision": revision,
                "not_before": now + timedelta(seconds=delay_s) if now else None,
            }
            for subject, event in messages
        ],
    )


async def take_due(
    connection: AsyncConnection, run_id: int, limit: int = 256, *, taken_s: float
) -> Sequence[Owed]:
    """Up to `limit` rows of a run that may be published now, oldest first, skipping rows that another relay has.

    They are taken for `taken_s` seconds: until then no other relay gets them, and no lock is held. If a crash of Postgres loses this update,
    the cost is a second publish, so its commit need not wait for the disk.
    """
    await _without_waiting_for_the_disk(connection)
    page = (
        select(outbox.c.outbox_id)
        .where(
            outbox.c.run_id == run_id,
            or_(outbox.c.not_before.is_(None), outbox.c.not_before <= func.clock_timestamp()),
        )
        .order_by(outbox.c.outbox_id)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("page")
    )
    rows = await connection.execute(
        update(outbox)
        .where(outbox.c.outbox_id == page.c.outbox_id)
        .values(not_before=func.clock_timestamp() + timedelta(seconds=taken_s))
        .returning(outbox)
    )
    return [
        from_wide_row(Owed, row, body=msgspec.json.encode(row.body), born_us=round(row.at.timestamp() * 1e6))
        for row in sorted(rows, key=lambda row: int(row.outbox_id))
    ]


async def postpone(connection: AsyncConnection, ids: Sequence[int], delay_s: float) -> None:
    """Retry later: rows that the bus refuses must not block rows that it accepts."""
    if ids:
        later = func.clock_timestamp() + timedelta(seconds=delay_s)
        await connection.execute(update(outbox).where(outbox.c.outbox_id.in_(ids)).values(not_before=later))


async def settle(connection: AsyncConnection, ids: Sequence[int]) -> None:
    """Delete rows whose publish was acknowledged. A row that a crash of Postgres restores is published again."""
    if ids:
        await _without_waiting_for_the_disk(connection)
        await connection.execute(delete(outbox).where(outbox.c.outbox_id.in_(ids)))


async def _without_waiting_for_the_disk(connection: AsyncConnection) -> None:
    await connection.execute(text("SET LOCAL synchronous_commit = off"))
