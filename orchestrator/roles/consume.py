"""The one consumer loop: fetch → one transaction → commit → ack. Duplicates, reordering and late messages are no-ops further down.

| produces | waits for | unblocked by |
|---|---|---|
| rows that `handle` commits, then acks | the stream | the sender |
| nothing while Postgres is away: unacked messages stay on the stream, which fills and pushes back | Postgres | its return |

A message with unusable content is stored as a dead letter with the reason. If Postgres itself refuses one (a number out of range, a broken
constraint), its batch is handled again one by one, so the other messages of the batch lose nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import Delivery
from orchestrator.bus.subjects import Consumer, run_of
from orchestrator.contracts.errors import MessageError
from orchestrator.pool.dead_letters import Letter, store
from orchestrator.pool.transact import of_content, sentence, transact
from orchestrator.roles.context import Flow
from orchestrator.runtime.liveness import current
from orchestrator.runtime.log import get

log = get(__name__)


@dataclass(frozen=True, slots=True)
class Later:
    """A delivery that cannot be used yet: it comes again after `after_s` seconds."""

    after_s: float


Outcome = str | Later
# Handles deliveries in one transaction, which may run several times. Returns what happens to deliveries that are not acked:
# the reason why one can never be used, or when it comes again.
Handle = Callable[[AsyncConnection, Sequence[Delivery]], Awaitable[Mapping[int, Outcome]]]


async def consume(
    flow: Flow,
    consumer: Consumer,
    handle: Handle,
    *,
    batch: int = 64,
    after: Callable[[], Awaitable[None]] | None = None,
    at: str,
) -> None:
    """Consume until cancelled. `handle` gets up to `batch` deliveries; `after` runs once they are committed and before they are acked.
    `at` names their commit."""
    async with flow.bus.subscribe(consumer, batch=batch) as arriving:
        while True:
            loop = current()
            loop.idle(consumer.stream)
            deliveries = await arriving.take(batch)
            loop.busy(f"{len(deliveries)} messages of {consumer.stream}")
            await process(flow, handle, deliveries, after, at=at)


async def process(
    flow: Flow,
    handle: Handle,
    deliveries: Sequence[Delivery],
    after: Callable[[], Awaitable[None]] | None = None,
    *,
    at: str,
) -> None:
    """Handle, commit, run `after`, settle: all `deliveries` at once, or one by one when the content of one is at fault."""

    async def work(connection: AsyncConnection) -> Mapping[int, Outcome]:
        outcomes = await handle(connection, deliveries)
        for i, outcome in outcomes.items():
            if isinstance(outcome, str):
                await _store_dead_letter(connection, flow, deliveries[i], outcome)
        return outcomes

    try:
        outcomes = await transact(flow.engine, work, at=at)
    except (DBAPIError, MessageError, ValueError, RecursionError) as error:
        if isinstance(error, DBAPIError) and not of_content(error):
            raise
        if len(deliveries) > 1:
            for delivery in deliveries:
                await process(flow, handle, [delivery], after, at=at)
            return
        reason = _why(error)
        await transact(
            flow.engine, lambda c: _store_dead_letter(c, flow, deliveries[0], reason), at="refused.commit"
        )
        outcomes = {0: reason}
    else:
        if after is not None:
            await after()
    for i, delivery in enumerate(deliveries):
        match outcomes.get(i):
            case None:
                await delivery.ack()
            case Later(after_s):
                await delivery.nak(after_s)
            case str() as reason:
                log.warning(
                    "bus.dead_letter", subject=delivery.subject, msg_id=delivery.msg_id, reason=reason
                )
                await flow.bus.dead_letter(delivery, reason, kept=True)


def _why(error: Exception) -> str:
    """A description of a message's error, for people."""
    if isinstance(error, DBAPIError):
        return sentence(error)
    return "its content is nested too deeply" if isinstance(error, RecursionError) else str(error)


async def _store_dead_letter(
    connection: AsyncConnection, flow: Flow, delivery: Delivery, reason: str
) -> None:
    """Store a dead letter, once. If a message's settling is lost after this commit, the message comes again and is refused again."""
    try:
        own_run = run_of(delivery.subject) == flow.run
    except ValueError:
        own_run = False
    letter = Letter(
        run_id=flow.run_id if own_run else None,
        stream=delivery.stream,
        subject=delivery.subject,
        schema=delivery.schema,
        msg_id=delivery.msg_id,
        reason=reason,
        deliveries=delivery.deliveries,
        body=delivery.body,
    )
    await store(connection, letter, counted=flow.run_id)
