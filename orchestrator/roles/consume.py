"""The one consumer loop: fetch → one transaction → commit → ack. Duplicates, reordering and late messages are no-ops further down.

| produces | waits for | unblocked by |
|---|---|---|
| rows that `handle` commits, then acks | the stream | the sender |
| nothing while Postgres is away: unacked messages stay on the stream, which fills and pushes back | Postgres | its return |

One message can end only itself. A message with unusable content is stored as a dead letter with the reason. If anything fails for a batch, it is
handled again one by one, so the other messages lose nothing. A message that Postgres refuses because of its content (a number out of range, a
broken constraint, a value too long for an index) is a dead letter at once. Any other failure makes it a suspect (`Suspects`), also handling that
leaves its transaction silent for so long that Postgres ends it. One that ends its process without an error is refused too (`Returned`).

A message that needs a value of a long computation (`NotReady`) is held in this process, without a transaction, while the others pass. Its handling
starts again once the value is there. While `MAX_HELD` messages are held, the consumer takes no others.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from prometheus_client import CollectorRegistry, Counter
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.base import BusError, Delivery
from orchestrator.bus.feed import in_background
from orchestrator.bus.subjects import Consumer, run_of
from orchestrator.bus.suspects import Suspects, identity
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.quote import quoted
from orchestrator.pool.dead_letters import Letter, store
from orchestrator.pool.suspect_messages import end_alone
from orchestrator.pool.transact import NotReady, of_content, sentence, transact
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.returned import REASON, Returned
from orchestrator.roles.reward_threads import waiting_for_rewards
from orchestrator.runtime.liveness import Loop, current, reporting, track_loop
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import measured

log = get(__name__)
IDLE_ENDS: Final = 2
"""Transactions of the same messages that Postgres may end because they are silent, before that counts as a failed try."""

STOP_S: Final = 3.0
"""A process that stops while it handles a message alone takes at most so long to record that this was no crash."""

MAX_HELD: Final = 16
"""Messages of one consumer that wait for a computation while others pass."""


@dataclass(frozen=True, slots=True)
class Later:
    """A delivery that cannot be used yet: it comes again after `after_s` seconds."""

    after_s: float


Outcome = str | Later
# Handles deliveries in one transaction, which may run several times. Returns what happens to deliveries that are not acked:
# the reason why one can never be used, or when it comes again.
Handle = Callable[[AsyncConnection, Sequence[Delivery]], Awaitable[Mapping[int, Outcome]]]


class ConsumerMetrics:
    """Failures that are not plainly the fault of a message."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.failed = Counter(
            "penstock_messages_failed",
            "Tries to handle a message that failed for a reason that is not plainly its content, by stream.",
            ["stream"],
            registry=registry,
        )


async def consume(
    context: OrchestratorContext,
    consumer: Consumer,
    handle: Handle,
    *,
    batch: int = 64,
    before: Callable[[Sequence[Delivery]], Awaitable[None]] | None = None,
    after: Callable[[], Awaitable[None]] | None = None,
    refused: Callable[[Delivery, str], Awaitable[None]] | None = None,
    at: str,
) -> None:
    """Consume until cancelled. `handle` gets up to `batch` deliveries; `before` runs before their transaction, for long work without it, and
    `after` once they are committed and before they are acked. `refused` answers the sender of a message that `handle` could not handle. `at` names
    their commit."""
    with reporting(f"{at.partition('.')[0]}.failing") as failing:
        work = _Consuming(
            context=context,
            consumer=consumer,
            handle=handle,
            before=before,
            after=after,
            refused=refused,
            failing=failing,
            returned=Returned(context.engine),
        )
        async with context.bus.subscribe(consumer, batch=batch) as arriving, in_background(work.holding):
            while True:
                await work.room()
                loop = current()
                loop.idle(consumer.stream)
                deliveries = await arriving.take(batch)
                loop.busy(f"{len(deliveries)} messages of {consumer.stream}")
                async with work.turn:
                    returned, others = work.returned.divide(deliveries)
                    if others:
                        await work.process(others, at=at)
                    for delivery in returned:
                        await work.process_alone(delivery, at=at)


@dataclass(slots=True, kw_only=True)
class _Consuming:
    context: OrchestratorContext
    consumer: Consumer
    handle: Handle
    before: Callable[[Sequence[Delivery]], Awaitable[None]] | None
    after: Callable[[], Awaitable[None]] | None
    refused: Callable[[Delivery, str], Awaitable[None]] | None
    failing: Loop
    returned: Returned
    suspects: Suspects = field(default_factory=Suspects)
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    """Taken to process messages: `handle`, `before` and `after` share their notes."""
    _holding: TaskGroup | None = None
    _held: dict[bytes, list[Delivery]] = field(default_factory=dict)
    """The deliveries of each held message: it may be sent again before it is settled."""
    _changed: anyio.Event = field(default_factory=anyio.Event)
    """Set when held messages can wait, and when one of them waits no longer."""

    async def holding(self) -> None:
        """Run the waits of held messages until cancelled."""
        async with anyio.create_task_group() as self._holding:
            self._changed.set()
            await anyio.sleep_forever()

    async def room(self) -> None:
        """Return when another message can be held."""
        while self._holding is None or len(self._held) >= MAX_HELD:
            current().busy(f"{len(self._held)} held messages")
            with waiting_for_rewards():
                await self._changed.wait()
            self._changed = anyio.Event()

    async def process_alone(self, delivery: Delivery, *, at: str) -> None:
        """Process a message that may have ended its process before."""
        async with self.context.alone, in_background(partial(self._keep, [delivery])):
            try:
                if await self.returned.may_be_handled(delivery):
                    await self.process([delivery], at=at, alone=True)
                else:
                    await self._refuse(delivery, REASON)
            except BaseException:
                with anyio.move_on_after(STOP_S, shield=True):
                    await self.returned.end(delivery)
                raise

    async def process(self, deliveries: Sequence[Delivery], *, at: str, alone: bool = False) -> None:
        """Handle, commit, run `after`, settle: all `deliveries` at once, or one by one if that fails. `alone`: a row of the data pool says so."""

        async def work(connection: AsyncConnection) -> Mapping[int, Outcome]:
            if alone:
                await end_alone(connection, identity(deliveries[0]))
            outcomes = await self.handle(connection, deliveries)
            for i, outcome in outcomes.items():
                if isinstance(outcome, str):
                    await _store_dead_letter(connection, self.context, deliveries[i], outcome)
            return outcomes

        try:
            if self.before is not None:
                await self.before(deliveries)
            outcomes = await transact(
                self.context.engine, work, at=at, most_idle_ends=IDLE_ENDS, wait_ready=False
            )
            if self.after is not None:
                await self.after()
        except Exception as error:  # noqa: BLE001  # counted and logged: one message can end only itself
            if alone:
                await self.returned.end(deliveries[0])
            if len(deliveries) > 1:
                for delivery in deliveries:
                    await self.process([delivery], at=at)
            elif isinstance(error, NotReady):
                self._hold(deliveries[0], error, at)
            else:
                await self._failed(deliveries[0], error)
            return
        for i, delivery in enumerate(deliveries):
            self.suspects.settled(delivery)
            match outcomes.get(i):
                case None:
                    self.suspects.passed += 1
                    self.returned.settled(delivery)
                    await delivery.ack()
                case Later(after_s):
                    self.returned.send_back(delivery)
                    await delivery.nak(after_s)
                case str() as reason:
                    await self._bury(delivery, reason)
        if not self.suspects.failing:
            self.failing.idle("messages")

    def _hold(self, delivery: Delivery, error: NotReady, at: str) -> None:
        """Keep a message until the value that it needs is computed."""
        name = identity(delivery)
        if name in self._held:
            self._held[name].append(delivery)
        else:
            assert self._holding is not None, "`room` comes before `process`"
            self._held[name] = [delivery]
            self._holding.start_soon(self._until_ready, name, error, at)

    async def _until_ready(self, name: bytes, error: NotReady, at: str) -> None:
        """Wait for the value, then process the message."""
        deliveries = self._held[name]
        with track_loop(f"{at.partition('.')[0]}.held", forever=False) as loop:
            loop.busy(f"message {quoted(deliveries[0].msg_id)}")
            async with in_background(partial(self._keep, deliveries)):
                await error.ready()
                async with self.turn:
                    del self._held[name]
                    self._changed.set()
                    await self.process(deliveries, at=at)

    async def _keep(self, deliveries: Sequence[Delivery]) -> None:
        """Tell the bus that messages are in work: they do not come again."""
        while True:
            await anyio.sleep(self.consumer.ack_wait_s / 3)
            for delivery in deliveries:
                await delivery.in_progress()

    async def _failed(self, delivery: Delivery, error: Exception) -> None:
        """Refuse a message, or have it delivered again."""
        if isinstance(error, MessageError | ValueError | RecursionError) or of_content(error):
            reason = _why(error)
        else:
            measured(ConsumerMetrics).failed.labels(delivery.stream).inc()
            wait_s = self.suspects.failed(delivery, last=delivery.deliveries >= self.consumer.max_deliver)
            log.error(
                "message.failed",
                subject=delivery.subject,
                msg_id=delivery.msg_id,
                deliveries=delivery.deliveries,
                again_s=wait_s,
                exc_info=error,
            )
            if wait_s is not None:
                if self.failing.resting:
                    self.failing.busy(f"message {quoted(delivery.msg_id)}")
                self.returned.send_back(delivery)
                await delivery.nak(wait_s)
                return
            reason = f"its handling failed {delivery.deliveries} times, the last time with {type(error).__name__}: {_why(error)}"
        await self._refuse(delivery, reason)

    async def _refuse(self, delivery: Delivery, reason: str) -> None:
        """Store a dead letter, answer the sender, settle."""

        async def store_refused(connection: AsyncConnection) -> None:
            await end_alone(connection, identity(delivery))
            await _store_dead_letter(connection, self.context, delivery, reason)

        await transact(self.context.engine, store_refused, at="refused.commit")
        self.suspects.settled(delivery)
        self.returned.settled(delivery)
        if self.refused is not None:
            await self.refused(delivery, reason)
        await self._bury(delivery, reason)

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        log.warning("bus.dead_letter", subject=delivery.subject, msg_id=delivery.msg_id, reason=reason)
        try:
            await self.context.bus.dead_letter(delivery, reason, kept=True)
        except BusError as error:  # its row is stored; only the copy on the bus is refused
            log.error(
                "dead_letter.refused", subject=delivery.subject, msg_id=delivery.msg_id, error=str(error)
            )
            await delivery.term()


def _why(error: Exception) -> str:
    """A description of a message's error, for people."""
    if isinstance(error, DBAPIError):
        return sentence(error)
    return "its content is nested too deeply" if isinstance(error, RecursionError) else str(error)


async def _store_dead_letter(
    connection: AsyncConnection, context: OrchestratorContext, delivery: Delivery, reason: str
) -> None:
    """Store a dead letter, once. If a message's settling is lost after this commit, the message comes again and is refused again."""
    try:
        own_run = run_of(delivery.subject) == context.run
    except ValueError:
        own_run = False
    letter = Letter(
        run_id=context.run_id if own_run else None,
        stream=delivery.stream,
        subject=delivery.subject,
        schema=delivery.schema,
        msg_id=delivery.msg_id,
        reason=reason,
        deliveries=delivery.deliveries,
        body=delivery.body,
    )
    await store(connection, letter, counted=context.run_id)
