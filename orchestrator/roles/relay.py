"""The relay: outbox rows of the run onto the bus.

| produces | waits for | unblocked by |
|---|---|---|
| published messages, deleted rows | outbox rows; NATS | any committed state change; NATS |

A page of rows is taken in one transaction, published outside of any, and deleted in another: Postgres holds nothing open while NATS is away.
Taken rows are reserved for `timeouts.outbox_taken_s`. If a relay dies or sleeps for longer, they are published twice, which is a no-op.
Rows that the bus refuses (a full stream) are retried later and block nothing else.
"""

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import BusError, Outgoing
from orchestrator.pool.outbox import postpone, settle, take_due
from orchestrator.pool.transact import transact
from orchestrator.roles.context import OrchestratorContext
from orchestrator.runtime.liveness import Loop, reporting
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

PERIOD_S = 0.1
PAGE = 256
REFUSED_AGAIN_S = 1.0


async def relay(context: OrchestratorContext) -> None:
    """Publish until cancelled."""
    with reporting("relay.refused") as refusals:
        while True:
            if await relay_page(context, refusals) < PAGE:
                await context.signals.outbox.wait(PERIOD_S)


async def relay_page(context: OrchestratorContext, refusals: Loop | None = None) -> int:
    """Publish the oldest page of rows; returns the number of rows. `refusals` reports the rows that the bus keeps refusing."""
    rows = await transact(
        context.engine,
        lambda connection: take_due(connection, context.run_id, PAGE, taken_s=timeouts().outbox_taken_s),
        at="relay.take",
    )
    if not rows:
        return 0
    results = await context.bus.publish_many(
        [
            Outgoing(subject=owed.subject, msg_id=owed.msg_id, schema=owed.schema, body=owed.body)
            for owed in rows
        ]
    )
    refused = []
    for row, result in zip(rows, results, strict=True):
        if isinstance(result, BusError):
            log.warning("relay.refused", subject=row.subject, msg_id=row.msg_id, error=str(result))
            refused.append(row.outbox_id)
    published = [row.outbox_id for row in rows if row.outbox_id not in set(refused)]

    async def done(connection: AsyncConnection) -> None:
        await postpone(connection, refused, REFUSED_AGAIN_S)
        await settle(connection, published)

    await transact(context.engine, done, at="relay.commit")
    if refusals is not None and published:
        refusals.idle("outbox rows")
    if refusals is not None and refused and refusals.resting:
        refusals.busy(f"outbox row {refused[0]}", on="nats")
    return len(rows)
