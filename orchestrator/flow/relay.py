"""The relay: outbox rows of the run onto the bus.

| produces | waits for | unblocked by |
|---|---|---|
| published messages, deleted rows | outbox rows; NATS | any committed state change; NATS |

A page of rows is taken in one transaction, published in none, deleted in another: however long NATS is away, Postgres holds nothing open
for it. Taken rows are nobody else's for `clock.outbox_taken_s`; a relay that died or slept for longer has them published twice, which is a no-op.
What the bus refuses (a full stream) is tried again later and holds nothing else up.
"""

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import BusError, Outgoing
from orchestrator.clock import clock
from orchestrator.flow.context import Flow
from orchestrator.log import get
from orchestrator.pool.outbox import postpone, settle, take_due
from orchestrator.pool.transact import transact
from orchestrator.progress import Loop, reporting

log = get(__name__)

PERIOD_S = 0.1
PAGE = 256
REFUSED_AGAIN_S = 1.0


async def relay(flow: Flow) -> None:
    """Publish until cancelled."""
    with reporting("relay.refused") as refusals:
        while True:
            if await relay_page(flow, refusals) < PAGE:
                await flow.signals.outbox.wait(PERIOD_S)


async def relay_page(flow: Flow, refusals: Loop | None = None) -> int:
    """Publish the oldest page of rows; returns how many rows there were. `refusals` is told what the bus goes on refusing."""
    owed = await transact(
        flow.engine,
        lambda connection: take_due(connection, flow.run_id, PAGE, taken_s=clock().outbox_taken_s),
        at="relay.take",
    )
    if not owed:
        return 0
    results = await flow.bus.publish_many(
        [Outgoing(row.subject, row.msg_id, row.schema, row.body) for row in owed]
    )
    refused = []
    for row, result in zip(owed, results, strict=True):
        if isinstance(result, BusError):
            log.warning("relay.refused", subject=row.subject, msg_id=row.msg_id, error=str(result))
            refused.append(row.outbox_id)
    published = [row.outbox_id for row in owed if row.outbox_id not in set(refused)]

    async def done(connection: AsyncConnection) -> None:
        await postpone(connection, refused, REFUSED_AGAIN_S)
        await settle(connection, published)

    await transact(flow.engine, done, at="relay.commit")
    if refusals is not None and published:
        refusals.rests("outbox rows")
    if refusals is not None and refused and refusals.resting:
        refusals.works(f"outbox row {refused[0]}", on="nats")
    return len(owed)
