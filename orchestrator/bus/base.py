"""The port of the bus: what flow, gateway and runners may ask of a transport that can be wiped at any time.

The data pool is the only truth. A message may come twice, late, out of order, or (after a wipe) not at all until its
sender publishes it again; deterministic ids, unique keys in the data pool and `on_stream_new` make that harmless.

::

    async with bus.subscribe(subjects.consume_steps("demo"), batch=256) as arriving:
        while True:
            deliveries = await arriving.take(256)      # waits for one, then takes what is there
            ...one transaction...                      # commit
            for delivery in deliveries:
                await delivery.ack()                   # only after the commit

What the bus is *not*: it keeps no history, promises no order, and knows nothing of the data pool.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.bus.subjects import Consumer

StreamCallback = Callable[[str], Awaitable[None]]
ReconnectCallback = Callable[[], Awaitable[None]]


class BusError(Exception):
    """Anything that goes wrong at the bus boundary; the text is one sentence for people."""


class BusUnavailable(BusError):
    """The server does not answer at start, or the connection was closed by us."""


class UnfitServer(BusError, ValueError):
    """The server is too old, has no JetStream, or accepts too small messages."""


class StreamFull(BusError):
    """The stream (or its disk) is full and refuses new messages: back-pressure. Nothing was stored, nothing was lost."""


class TooLarge(BusError, ValueError):
    """The message is larger than the server accepts; it was not sent."""


class ConsumerConflict(BusError):
    """Another consumer of the work-queue stream already takes some of these subjects: a fault in the program."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to publish.

    ``msg_id`` is deterministic (outbox row id, ``rollout:epoch:step:kind``, ``run:submission``): the same message
    published again within the de-duplication window is stored once. ``schema`` is ``"<name>/<version>"``.
    """

    subject: str
    msg_id: str
    schema: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """One core message: heard by who listens at that moment, kept by nobody."""

    subject: str
    body: bytes


class Delivery(Protocol):
    """One delivered message. Settling it (ack, nak, term) twice does nothing; no settling ever raises.

    A settling that gets lost leads to one more delivery. ``schema`` and ``msg_id`` are None if the sender gave none.
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
        """Done, and committed: forget the message."""

    async def nak(self, delay_s: float = 0.0) -> None:
        """Not done: deliver it again after ``delay_s`` seconds."""

    async def term(self) -> None:
        """Never deliver it again. Use `Bus.dead_letter`, which keeps the message, unless it is kept elsewhere."""

    async def in_progress(self) -> None:
        """Still at work: start the ack wait anew."""


class Subscription(Protocol):
    """The deliveries of one consumer, fetched only while somebody waits for them.

    Nothing is fetched for a taker that is busy, so a subscription with ``batch=1`` never holds work that another
    runner could do. Also an endless async iterator of single deliveries. Several tasks may take from one subscription.
    """

    async def take(self, limit: int) -> list[Delivery]:
        """Wait for at least one delivery, then return what has arrived, at most ``limit``, in order of arrival."""

    def __aiter__(self) -> AsyncIterator[Delivery]: ...
    async def __anext__(self) -> Delivery: ...


class Bus(Protocol):
    """The transport. Every waiting is bounded by the caller's cancel scope only."""

    @property
    def reachable(self) -> bool:
        """Whether the server was there a moment ago: while it is not, nothing arrives and nobody is to blame for it."""

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message, headers included, that the server takes."""

    async def ensure_streams(self) -> list[str]:
        """Create what is missing; return the names of the streams that are missing or new since this bus last looked.

        "New" is: created again by anyone, or set back to an earlier message (a server that lost its tail). Each name
        is also given to the `on_stream_new` callbacks, once.
        """

    def on_stream_new(self, callback: StreamCallback) -> None:
        """Call ``callback(stream)`` after a stream was found missing or new: publish again what it must hold.

        Callbacks run one after another in a task of the bus. One that raises ends the bus (and so the process).
        """

    def on_reconnect(self, callback: ReconnectCallback) -> None:
        """Call after each reconnection, once streams were checked: publish again what is not confirmed."""

    async def publish(self, message: Outgoing) -> bool:
        """Store one message and return True, or False if the stream already had its id.

        Blocks and retries while the server is away. Raises StreamFull or TooLarge, and ValueError for a subject that
        no stream stores.
        """

    async def publish_many(self, messages: Sequence[Outgoing]) -> list[bool | BusError]:
        """Publish concurrently; one result per message, in order, each what `publish` returns or raises."""

    async def notify(self, subject: str, body: bytes) -> None:
        """Tell whoever listens now (core NATS). Best effort."""

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[Notice]]:
        """Hear core messages from the moment the context is entered; `subject` may hold wildcards."""

    def subscribe(self, consumer: Consumer, batch: int = 64) -> AbstractAsyncContextManager[Subscription]:
        """Consume. At most ``batch`` messages are fetched ahead; what is left at the end is handed back at once."""

    async def dead_letter(self, message: Delivery | Outgoing, reason: str, *, kept: bool = False) -> None:
        """Keep the message, its reason and its delivery count in ``dead.<stream>``, then settle it for good.

        ``kept``: the data pool has it already; else an orchestrator puts it there.
        """
