"""Messages that come again and again although this process did not send them back: the processes that handled them may have ended of them.

Such an end leaves no error: native code crashes, or the kernel kills for lack of memory. A message whose first two deliveries nothing settled is
handled alone, while no other consumer of the process does so, and a row of the data pool says that it is (`pool.suspect_messages`). If the row is
still there when another process receives the message, the one before ended while it handled this message, and the message is refused. A process
restarts three times at most because of one message. An innocent message is refused only if its process is killed three times, at last at that moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus.base import Delivery
from orchestrator.bus.suspects import identity
from orchestrator.pool.suspect_messages import begin_alone, end_alone
from orchestrator.pool.transact import transact

TOGETHER = 2
"""Deliveries of a message in which it is handled with others."""
MAX_SENT_BACK = 10_000
"""Remembered messages. One that is forgotten is handled alone, which is only slower."""

REASON = (
    "the processes that handled it ended without an error, the last one when it handled this message alone: "
    "it may take too much memory, or crash a library"
)


@dataclass(slots=True)
class Returned:
    """The messages that one consumer in this process sent back, and the rows of those that came back otherwise."""

    engine: AsyncEngine
    _sent_back: set[bytes] = field(default_factory=set)

    def divide(self, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Those that have come too often and that this process did not send back, and the others."""
        returned: list[Delivery] = []
        others: list[Delivery] = []
        for delivery in deliveries:
            came_back = delivery.deliveries > TOGETHER and identity(delivery) not in self._sent_back
            (returned if came_back else others).append(delivery)
        return returned, others

    def send_back(self, delivery: Delivery) -> None:
        """This process has handled the message, which comes again later."""
        if len(self._sent_back) >= MAX_SENT_BACK:
            self._sent_back.clear()
        self._sent_back.add(identity(delivery))

    def settled(self, delivery: Delivery) -> None:
        """The message comes no more."""
        if self._sent_back:
            self._sent_back.discard(identity(delivery))

    async def may_be_handled(self, delivery: Delivery) -> bool:
        """Record that the message is handled alone now. False if a process that did so before ended of it."""
        return await begin_alone(self.engine, identity(delivery), delivery.stream) == 1

    async def end(self, delivery: Delivery) -> None:
        """Record that its handling has ended without a commit."""
        await transact(
            self.engine, lambda connection: end_alone(connection, identity(delivery)), at="refused.commit"
        )
