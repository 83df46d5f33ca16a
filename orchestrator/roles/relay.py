"""The relay: outbox rows of the run onto the bus.

| produces | waits for | unblocked by |
|---|---|---|
| published messages, deleted rows | outbox rows; NATS | any committed state change; NATS |
| dead letters in place of rows | NATS, which never takes them | – |

A page of rows is taken in one transaction, published outside of any, and deleted in another: Postgres holds nothing open while NATS is away.
Taken rows are reserved for `timeouts.outbox_taken_s`. If a relay dies or sleeps for longer, they are published twice, which is a no-op.
Rows that the bus refuses (a full stream) are retried later and block nothing else. A row that NATS never takes, because of what it is or after three
refusals while others of its stream passed (`bus.suspects`), is a dead letter with its reason. An assignment that gets lost so is sent again by
`roles.rebuild`.
"""

from collections import defaultdict

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import BusError, Outgoing, StreamFull, Unsendable
from orchestrator.bus.suspects import Suspects
from orchestrator.pool.dead_letters import keep_unsendable
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
    suspects = defaultdict[str, Suspects](Suspects)
    with reporting("relay.refused") as refusals:
        while True:
            if await relay_page(context, refusals, suspects) < PAGE:
                await context.signals.outbox.wait(PERIOD_S)


async def relay_page(
    context: OrchestratorContext,
    refusals: Loop | None = None,
    suspects: defaultdict[str, Suspects] | None = None,
) -> int:
    """Publish the oldest page of rows; returns the number of rows. `refusals` reports the rows that the bus keeps refusing; `suspects`, by the
    first word of the subject, counts how often it refused each: a stream may refuse all of its own, whatever passes elsewhere."""
    rows = await transact(
        context.engine,
        lambda connection: take_due(connection, context.run_id, PAGE, taken_s=timeouts().outbox_taken_s),
        at="relay.take",
    )
    if not rows:
        return 0
    messages = [
        Outgoing(subject=owed.subject, msg_id=owed.msg_id, schema=owed.schema, body=owed.body)
        for owed in rows
    ]
    results = await context.bus.publish_many(messages)
    suspects = defaultdict(Suspects) if suspects is None else suspects
    published, refused, dead = [], [], []
    streams = [suspects[row.subject.partition(".")[0]] for row in rows]
    for of_stream, message, result in zip(streams, messages, results, strict=True):
        if not isinstance(result, BusError):
            of_stream.passed += 1
            of_stream.settled(message)
    for row, of_stream, message, result in zip(rows, streams, messages, results, strict=True):
        if not isinstance(result, BusError):
            published.append(row.outbox_id)
            continue
        log.warning("relay.refused", subject=row.subject, msg_id=row.msg_id, error=str(result))
        if _never_taken(result, message, of_stream):
            log.error("bus.dead_letter", subject=row.subject, msg_id=row.msg_id, reason=str(result))
            dead.append((row, f"NATS never takes it: {result}"))
        else:
            refused.append(row.outbox_id)

    async def done(connection: AsyncConnection) -> None:
        await postpone(connection, refused, REFUSED_AGAIN_S)
        for row, reason in dead:
            await keep_unsendable(
                connection, context.run_id, row.subject, row.schema, row.msg_id, row.body, reason
            )
        await settle(connection, published + [row.outbox_id for row, _ in dead])

    await transact(context.engine, done, at="relay.commit")
    if refusals is not None and published:
        refusals.idle("outbox rows")
    if refusals is not None and refused and refusals.resting:
        refusals.busy(f"outbox row {refused[0]}", on="nats")
    return len(rows)


def _never_taken(error: BusError, message: Outgoing, suspects: Suspects) -> bool:
    """Whether another try is in vain: the message can never be sent, or NATS refused it several times while others of its stream passed."""
    if isinstance(error, StreamFull):
        return False
    if isinstance(error, Unsendable) or suspects.failed(message) is None:
        suspects.settled(message)
        return True
    return False
