"""The one consumer loop: fetch → one transaction → commit → ack. Duplicates, reordering and late messages are no-ops further down.

| produces | waits for | unblocked by |
|---|---|---|
| what `handle` commits, then acks | the stream | the sender |
| nothing while Postgres is away: unacked messages stay on the stream, which fills and pushes back | Postgres | its return |

A message whose content cannot be used is kept as a dead letter with the reason. One that Postgres itself refuses (a number out of range, a
broken constraint) is found by handling its batch again one by one; the others of the batch lose nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import Delivery
from orchestrator.bus.subjects import Consumer, run_of
from orchestrator.contracts.errors import MessageError
from orchestrator.flow.context import Flow
from orchestrator.log import get
from orchestrator.pool.dead import Letter, keep
from orchestrator.pool.transact import of_content, sentence, transact
from orchestrator.progress import current

log = get(__name__)

# Handles deliveries inside one transaction, which may run several times; returns the reason for each one that can never be used.
Handle = Callable[[AsyncConnection, Sequence[Delivery]], Awaitable[Mapping[int, str]]]


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
            loop.rests(consumer.stream)
            deliveries = await arriving.take(batch)
            loop.works(f"{len(deliveries)} messages of {consumer.stream}")
            await process(flow, handle, deliveries, after, at=at)


async def process(
    flow: Flow,
    handle: Handle,
    deliveries: Sequence[Delivery],
    after: Callable[[], Awaitable[None]] | None = None,
    *,
    at: str,
) -> None:
    """Handle, commit, run `after`, settle: all of `deliveries` at once, or one by one when the content of one is at fault."""

    async def work(connection: AsyncConnection) -> Mapping[int, str]:
        refused = await handle(connection, deliveries)
        for i, reason in refused.items():
            await _keep(connection, flow, deliveries[i], reason)
        return refused

    try:
        refused = await transact(flow.engine, work, at=at)
    except (DBAPIError, MessageError, ValueError, RecursionError) as error:
        if isinstance(error, DBAPIError) and not of_content(error):
            raise
        if len(deliveries) > 1:
            for delivery in deliveries:
                await process(flow, handle, [delivery], after, at=at)
            return
        reason = _why(error)
        await transact(flow.engine, lambda c: _keep(c, flow, deliveries[0], reason), at="refused.commit")
        refused = {0: reason}
    else:
        if after is not None:
            await after()
    for i, delivery in enumerate(deliveries):
        if i in refused:
            log.warning(
                "bus.dead_letter", subject=delivery.subject, msg_id=delivery.msg_id, reason=refused[i]
            )
            await flow.bus.dead_letter(delivery, refused[i], kept=True)
        else:
            await delivery.ack()


def _why(error: Exception) -> str:
    """What is wrong with a message, for people."""
    if isinstance(error, DBAPIError):
        return sentence(error)
    return "its content is nested too deeply" if isinstance(error, RecursionError) else str(error)


async def _keep(connection: AsyncConnection, flow: Flow, delivery: Delivery, reason: str) -> None:
    """Once: a message whose settling is lost after this commit comes again, and is refused again."""
    try:
        ours = run_of(delivery.subject) == flow.run
    except ValueError:
        ours = False
    letter = Letter(
        flow.run_id if ours else None,
        delivery.stream,
        delivery.subject,
        delivery.schema,
        delivery.msg_id,
        reason,
        delivery.deliveries,
        delivery.body,
    )
    await keep(connection, letter, counted=flow.run_id)
