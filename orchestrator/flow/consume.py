"""The one consumer loop: fetch → one transaction → commit → ack. Duplicates, reordering and late messages are no-ops further down.

| produces | waits for | unblocked by |
|---|---|---|
| what `handle` commits, then acks | the stream | the sender |
| nothing while Postgres is away: unacked messages stay on the stream, which fills and pushes back | Postgres | its return |
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import Delivery
from orchestrator.bus.subjects import Consumer
from orchestrator.flow.context import Flow
from orchestrator.log import get
from orchestrator.pool.tables import dead_letters
from orchestrator.pool.transact import transact

log = get(__name__)

# Handles deliveries inside one transaction; returns the reason for each one that can never be used.
Handle = Callable[[AsyncConnection, Sequence[Delivery]], Awaitable[Mapping[int, str]]]


async def consume(
    flow: Flow,
    consumer: Consumer,
    handle: Handle,
    *,
    batch: int = 64,
    after: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Consume until cancelled. `handle` gets up to `batch` deliveries; `after` runs once they are committed and before they are acked."""
    async with flow.bus.subscribe(consumer, batch=batch) as arriving:
        while True:
            deliveries = await arriving.take(batch)

            async def work(
                connection: AsyncConnection, deliveries: Sequence[Delivery] = deliveries
            ) -> Mapping[int, str]:
                refused = await handle(connection, deliveries)
                for i, reason in refused.items():
                    await _keep(connection, flow.run_id, deliveries[i], reason)
                return refused

            refused = await transact(flow.engine, work)
            if after is not None:
                await after()
            for i, delivery in enumerate(deliveries):
                if i in refused:
                    log.warning(
                        "bus.dead_letter", subject=delivery.subject, msg_id=delivery.msg_id, reason=refused[i]
                    )
                    await flow.bus.dead_letter(delivery, refused[i])
                else:
                    await delivery.ack()


async def _keep(connection: AsyncConnection, run_id: int | None, delivery: Delivery, reason: str) -> None:
    await connection.execute(
        dead_letters.insert().values(
            run_id=run_id,
            stream=delivery.stream,
            subject=delivery.subject,
            schema=delivery.schema,
            msg_id=delivery.msg_id,
            reason=reason,
            deliveries=delivery.deliveries,
            body=delivery.body,
        )
    )
