"""Letters: what runners refuse and what came too often without an acknowledgement, from the bus to where people look.

| produces | waits for | unblocked by |
|---|---|---|
| dead letters, kept and then acked | DEAD | whoever refuses a message |

Runners may not write what they refuse into the data pool, and the bus, which buries what it delivered in vain, knows none. They
publish it to ``dead.<stream>``; here it becomes a row, once. Who writes the row itself, as ingest does before the message leaves its stream,
says so in the letter. One durable serves all runs of the database.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery
from orchestrator.flow.consume import consume
from orchestrator.flow.context import Flow
from orchestrator.log import get
from orchestrator.pool.dead import Letter, in_part, keep
from orchestrator.pool.runs import find_run

log = get(__name__)

BATCH = 16
INTEGER = 2**31 - 1


async def keep_letters(flow: Flow) -> None:
    """Consume until cancelled."""

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, str]:
        for delivery in deliveries:
            if delivery.headers.get(subjects.HEADER_DEAD_KEPT) == "no":
                letter = await read_letter(connection, delivery)
                if await keep(connection, letter, counted=letter.run_id or flow.run_id):
                    log.warning(
                        "dead_letter.kept", subject=letter.subject, msg_id=letter.msg_id, reason=letter.reason
                    )
        return {}

    await consume(flow, subjects.consume_letters(), handle, batch=BATCH, at="letters.commit")


async def read_letter(connection: AsyncConnection, delivery: Delivery) -> Letter:
    """The message that a letter is about. Whatever its headers say, there is a letter."""
    headers = delivery.headers
    subject = headers.get(subjects.HEADER_DEAD_SUBJECT) or delivery.subject
    reason = headers.get(subjects.HEADER_DEAD_REASON) or "no reason given"
    whole = _number(headers.get(subjects.HEADER_DEAD_BODY_BYTES))
    if whole > len(delivery.body):
        reason += in_part(len(delivery.body), whole)
    try:
        run = await find_run(connection, subjects.run_of(subject))
    except ValueError:
        run = None
    return Letter(
        run_id=run.run_id if run is not None else None,
        stream=delivery.subject.rpartition(".")[2].upper(),
        subject=subject,
        schema=delivery.schema,
        msg_id=headers.get(subjects.HEADER_DEAD_MSG_ID),
        reason=reason,
        deliveries=_number(headers.get(subjects.HEADER_DEAD_DELIVERIES)),
        body=delivery.body,
    )


def _number(text: str | None) -> int:
    """A count in a header; 0 for what is none."""
    return min(int(text), INTEGER) if text and text.isascii() and text.isdigit() and len(text) < 19 else 0
