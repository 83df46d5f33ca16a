"""The relay: outbox rows of the run onto the bus.

| produces | waits for | unblocked by |
|---|---|---|
| published messages, deleted rows | outbox rows; NATS | any committed state change; NATS |

Rows are taken with SKIP LOCKED and deleted after the publish acknowledgement, in one transaction: a crash between the two publishes again.
What the bus refuses (a full stream) is tried again later and holds nothing else up.
"""

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import BusError, Outgoing
from orchestrator.flow.context import Flow
from orchestrator.log import get
from orchestrator.pool.outbox import due, postpone, settle
from orchestrator.pool.transact import transact

log = get(__name__)

PERIOD_S = 0.1
PAGE = 256
REFUSED_AGAIN_S = 1.0


async def relay(flow: Flow) -> None:
    """Publish until cancelled."""
    while True:
        if (
            await transact(flow.engine, lambda connection: relay_page(connection, flow), at="relay.commit")
            < PAGE
        ):
            await flow.signals.outbox.wait(PERIOD_S)


async def relay_page(connection: AsyncConnection, flow: Flow) -> int:
    """Publish the oldest page of rows; returns how many rows there were."""
    owed = await due(connection, flow.run_id, PAGE)
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
    await postpone(connection, refused, REFUSED_AGAIN_S)
    await settle(connection, [row.outbox_id for row in owed if row.outbox_id not in set(refused)])
    return len(owed)
