"""The bus port: the operations that roles, gateway and runners may call on a transport that can be wiped at any time.

The data pool is the only truth. A message may arrive twice, late, out of order, or (after a wipe) not at all until its
sender publishes it again. Deterministic ids, unique keys in the data pool and `on_stream_new` make all of this harmless.

::

    async with bus.subscribe(subjects.consume_steps("demo"), batch=256) as arriving:
        while True:
            deliveries = await arriving.take(256)      # waits for the first, then returns all that have arrived
            ...one transaction...                      # commit
            for delivery in deliveries:
                await delivery.ack()                   # only after the commit

The bus keeps no history, promises no order, and does not depend on the data pool.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.bus.subjects import Consumer

StreamCallback = Callable[[str], Awaitable[None]]
ReconnectCallback = Callable[[], Awaitable[None]]


class BusError(Exception):
    """Any error at the bus boundary. The text is one sentence for people."""


class BusUnavailable(BusError):
    """The server does not answer at start, or we closed the connection."""


class UnfitServer(BusError, ValueError):
    """The server is too old, has no JetStream, or accepts too small messages."""


class StreamFull(BusError):
    """The stream (or its disk) is full and refuses new messages: back-pressure. Nothing is stored, nothing is lost."""


class Unsendable(BusError, ValueError):
    """No server ever takes the message, because of what it is: another try is in vain."""


class TooLarge(Unsendable):
    """The message is larger than the server accepts; it was not sent."""


class ConsumerConflict(BusError):
    """Another consumer of the work-queue stream already takes some of these subjects: a fault in the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message to publish.

    ``msg_id`` is deterministic (outbox row id, ``rollout:epoch:step:kind``, ``run:submission``): the stream stores a
    message once, even if it is published again within the de-duplication window. ``schema`` is ``"<name>/<version>"``.
    """

    subject: str
    msg_id: str
    schema: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """One core message. It reaches only current listeners and is not stored."""

    subject: str
    body: bytes


class Delivery(Protocol):
    """One delivered message. Settling it (ack, nak, term) twice does nothing. Settling never raises.

    If a settlement is lost, the message is delivered once more. ``schema`` and ``msg_id`` are None if the sender set none.
    ``deliveries`` is 1 at the first delivery.
    """

    @property
    def stream(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def schema(self) -> str | None: ...
    @property
    def msg_id(self) -> str | None: ...
    @property
    def deliveries(self) -> int: ...

    async def ack(self) -> None:
        """The message is processed and committed: remove it."""

    async def nak(self, delay_s: float = 0.0) -> None:
        """The message is not processed: deliver it again after ``delay_s`` seconds."""

    async def term(self) -> None:
        """Never deliver it again. Use `Bus.dead_letter`, which keeps the message, unless it is stored elsewhere."""

    async def in_progress(self) -> None:
        """Processing continues: restart the ack wait."""


class Subscription(Protocol):
    """The deliveries of one consumer, fetched only while a task waits for them.

    Nothing is fetched while all takers are busy, so a subscription with ``batch=1`` never holds work that another
    runner could do. A subscription is also an endless async iterator of single deliveries. Several tasks may take from it.
    """

    async def take(self, limit: int) -> list[Delivery]:
        """Wait for at least one delivery, then return those that have arrived, at most ``limit``, in order of arrival."""

    def __aiter__(self) -> AsyncIterator[Delivery]: ...
    async def __anext__(self) -> Delivery: ...


class Bus(Protocol):
    """The transport. Only the caller's cancel scope bounds a wait."""

    @property
    def reachable(self) -> bool:
        """Whether the server was reachable at the last check. While it is not, nothing arrives, and no process is to blame."""

    @property
    def max_payload(self) -> int:
        """Size in bytes of the largest message, headers included, that the server accepts."""

    async def ensure_streams(self) -> list[str]:
        """Create missing streams. Return the names of the streams that are missing or new since this bus last checked.

        "New" means: recreated by any process, or set back to an earlier message (a server that lost its tail). Each name
        is also passed to the `on_stream_new` callbacks, once.
        """

    def on_stream_new(self, callback: StreamCallback) -> None:
        """Call ``callback(stream)`` after a stream was found missing or new. The callback publishes the missing content again.

        Callbacks run one after another in a task of the bus. An exception in a callback ends the bus (and so the process).
        """

    def on_reconnect(self, callback: ReconnectCallback) -> None:
        """Call after each reconnection, once streams were checked. The callback publishes unconfirmed messages again."""

    async def publish(self, message: Outgoing) -> bool:
        """Store one message and return True, or False if the stream already had its id.

        Blocks and retries while the server is unreachable. Raises StreamFull, Unsendable (TooLarge, or a subject that no stream stores), and
        BusError for another refusal of the server.
        """

    async def publish_many(self, messages: Sequence[Outgoing]) -> list[bool | BusError]:
        """Publish concurrently. Return one result per message, in order: the value that `publish` returns or the error that it raises."""

    async def notify(self, subject: str, body: bytes) -> None:
        """Send to all current listeners (core NATS). Best effort."""

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[Notice]]:
        """Receive core messages from the moment the context is entered. `subject` may contain wildcards."""

    def subscribe(self, consumer: Consumer, batch: int = 64) -> AbstractAsyncContextManager[Subscription]:
        """Consume. At most ``batch`` messages are fetched ahead. Untaken messages return to the stream at once when it ends."""

    async def dead_letter(self, message: Delivery | Outgoing, reason: str, *, kept: bool = False) -> None:
        """Store the message, its reason and its delivery count in ``dead.<stream>``, then settle it for good.

        ``kept``: the data pool has it already; otherwise an orchestrator stores it there.
        """
