"""Letters: messages that runners refused or that were delivered too often without an ack, moved from the bus to the data pool.

| produces | waits for | unblocked by |
|---|---|---|
| dead letters, stored and then acked | DEAD | processes that refuse a message |

Runners may not write refused messages into the data pool, and the bus, which buries undeliverable messages, has no access to it. Both publish
them to ``dead.<stream>``; here each becomes one row. A process that writes the row itself, as ingest does before the message leaves its stream,
states so in the letter. One durable serves all runs of the database.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery
from orchestrator.contracts.quote import quoted
from orchestrator.pool.counter_names import OTHER
from orchestrator.pool.dead_letters import Letter, in_part, store
from orchestrator.pool.runs import find_run
from orchestrator.roles.consume import Outcome, consume
from orchestrator.roles.context import OrchestratorContext
from orchestrator.runtime.log import get

log = get(__name__)

BATCH = 16
INTEGER = 2**31 - 1
_STREAMS = frozenset(stream.name for stream in subjects.STREAMS)


async def store_dead_letters(context: OrchestratorContext) -> None:
    """Consume until cancelled."""

    async def handle(connection: AsyncConnection, deliveries: Sequence[Delivery]) -> Mapping[int, Outcome]:
        for delivery in deliveries:
            if delivery.headers.get(subjects.HEADER_DEAD_KEPT) == "no":
                letter = await read_letter(connection, delivery)
                if await store(connection, letter, counted=letter.run_id or context.run_id):
                    log.warning(
                        "dead_letter.kept", subject=letter.subject, msg_id=letter.msg_id, reason=letter.reason
                    )
        return {}

    await consume(context, subjects.consume_dead_letters(), handle, batch=BATCH, at="dead_letters.commit")


async def read_letter(connection: AsyncConnection, delivery: Delivery) -> Letter:
    """The message that a letter is about. Any headers give a letter. Letters of streams that do not exist have the stream `OTHER`: anyone may
    invent names, and each stream has its counter."""
    headers = delivery.headers
    stream = delivery.subject.rpartition(".")[2].upper()
    subject = headers.get(subjects.HEADER_DEAD_SUBJECT) or delivery.subject
    reason = headers.get(subjects.HEADER_DEAD_REASON) or "no reason given"
    total_bytes = _number(headers.get(subjects.HEADER_DEAD_BODY_BYTES))
    if total_bytes > len(delivery.body):
        reason += in_part(len(delivery.body), total_bytes)
    if stream not in _STREAMS:
        reason = f"{quoted(delivery.subject)} names no stream: {reason}"
        stream = OTHER
    try:
        run = await find_run(connection, subjects.run_of(subject))
    except ValueError:
        run = None
    return Letter(
        run_id=run.run_id if run is not None else None,
        stream=stream,
        subject=subject,
        schema=delivery.schema,
        msg_id=headers.get(subjects.HEADER_DEAD_MSG_ID),
        reason=reason,
        deliveries=_number(headers.get(subjects.HEADER_DEAD_DELIVERIES)),
        body=delivery.body,
    )


def _number(text: str | None) -> int:
    """A count in a header; 0 if it is not a number."""
    return min(int(text), INTEGER) if text and text.isascii() and text.isdigit() and len(text) < 19 else 0
