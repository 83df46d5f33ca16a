"""The relay: outbox rows onto the bus.

| produces | waits for | unblocked by |
|---|---|---|
| published messages, deleted rows | outbox rows; NATS | any committed state change; NATS |

Rows are taken with SKIP LOCKED and deleted after the publish acknowledgement, in one transaction: a crash between the two publishes again.
"""

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import BusError, Outgoing
from orchestrator.flow.context import Flow
from orchestrator.log import get
from orchestrator.pool.outbox import due, settle
from orchestrator.pool.transact import transact

log = get(__name__)

PERIOD_S = 0.1
PAGE = 256


async def relay(flow: Flow) -> None:
    """Publish until cancelled."""

    async def page(connection: AsyncConnection) -> int:
        owed = await due(connection, PAGE)
        if not owed:
            return 0
        results = await flow.bus.publish_many(
            [Outgoing(row.subject, row.msg_id, row.schema, row.body) for row in owed]
        )
        done = []
        for row, result in zip(owed, results, strict=True):
            if isinstance(result, BusError):
                log.warning("relay.refused", subject=row.subject, msg_id=row.msg_id, error=str(result))
            else:
                done.append(row.outbox_id)
        await settle(connection, done)
        return len(done)

    while True:
        if await transact(flow.engine, page) < PAGE:
            await flow.signals.outbox.wait(PERIOD_S)
