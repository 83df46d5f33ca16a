"""The bus in memory: the same contract without a server, for unit and stateful tests only.

Time comes from a clock that a test can move: `ManualClock` moves only by `advance`. Everything happens in one
event loop; nothing survives the object.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectSendStream

from orchestrator.bus import subjects
from orchestrator.bus.base import (
    BusError,
    ConsumerConflict,
    Delivery,
    Notice,
    Outgoing,
    ReconnectCallback,
    StreamCallback,
    StreamFull,
    Subscription,
)
from orchestrator.bus.dead_letters import conflict, dead_letter, undeliverable
from orchestrator.bus.feed import Feed, in_background
from orchestrator.bus.subjects import Consumer, Retention, Stream
from orchestrator.bus.watch import Sighting, StreamWatch
from orchestrator.bus.wire import check_size, stream_name, wire_headers


class ManualClock:
    """A clock that a test moves. ``now`` is in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._watchers: list[Callable[[], None]] = []

    def advance(self, seconds: float) -> None:
        """Move forward; messages that fall due are delivered."""
        self.now += seconds
        for watcher in self._watchers:
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        self._watchers.append(watcher)


@dataclass(slots=True, kw_only=True)
class _Stored:
    seq: int
    subject: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class _Progress:
    """The state of one message for one consumer: its number of deliveries, and the time from which it may be delivered again."""

    deliveries: int = 0
    due: float = 0.0
    settled: bool = False


@dataclass(slots=True)
class _Consumer:
    spec: Consumer
    progress: dict[int, _Progress] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Stream:
    spec: Stream
    created: str
    last_seq: int = 0
    messages: dict[int, _Stored] = field(default_factory=dict)
    ids: dict[str, float] = field(default_factory=dict)  # msg id -> when stored
    consumers: dict[str, _Consumer] = field(default_factory=dict)


class MemoryDelivery:
    """See `Delivery`. Bound to the stream object it came from: after a wipe, settling it does nothing."""

    def __init__(self, bus: "MemoryBus", *, stream: _Stream, consumer: _Consumer, stored: _Stored) -> None:
        self._bus, self._stream, self._consumer, self._stored = bus, stream, consumer, stored
        self.deliveries = consumer.progress[stored.seq].deliveries
        self._done = False

    @property
    def stream(self) -> str:
        return self._stream.spec.name

    @property
    def subject(self) -> str:
        return self._stored.subject

    @property
    def headers(self) -> Mapping[str, str]:
        return self._stored.headers

    @property
    def body(self) -> bytes:
        return self._stored.body

    @property
    def schema(self) -> str | None:
        return self._stored.headers.get(subjects.HEADER_SCHEMA) or None

    @property
    def msg_id(self) -> str | None:
        return self._stored.headers.get(subjects.HEADER_MSG_ID) or None

    async def ack(self) -> None:
        progress = self._settle()
        if progress is not None:
            progress.settled = True
            if self._stream.spec.retention is Retention.WORK_QUEUE:
                self._stream.messages.pop(self._stored.seq, None)
                del self._consumer.progress[self._stored.seq]
            self._bus.changed()

    async def nak(self, delay_s: float = 0.0) -> None:
        progress = self._settle()
        if progress is not None:
            progress.due = self._bus.now() + delay_s
            self._bus.changed()

    async def term(self) -> None:
        await self.ack()

    async def in_progress(self) -> None:
        progress = self._consumer.progress.get(self._stored.seq)
        if progress is not None and not self._done:
            progress.due = self._bus.now() + self._consumer.spec.ack_wait_s

    def _settle(self) -> _Progress | None:
        if self._done:
            return None
        self._done = True
        return self._consumer.progress.get(self._stored.seq)


class MemoryBus:
    """See `Bus`. ``streams`` may hold smaller limits than the real ones."""

    def __init__(
        self,
        *,
        clock: ManualClock | None = None,
        streams: Sequence[Stream] = subjects.STREAMS,
        max_payload: int = 8 * 1024 * 1024,
    ) -> None:
        self._clock = clock
        self._specs = streams
        self._max_payload = max_payload
        self._streams: dict[str, _Stream] = {}
        self._births = itertools.count(1)
        self._change = anyio.Event()
        self._listeners: list[tuple[str, MemoryObjectSendStream[Notice]]] = []
        self._watch = StreamWatch(self._look, period_s=None)
        if clock is not None:
            clock.watch(self.changed)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        clock: ManualClock | None = None,
        streams: Sequence[Stream] = subjects.STREAMS,
        max_payload: int = 8 * 1024 * 1024,
    ) -> AsyncIterator["MemoryBus"]:
        """A bus that runs its callbacks while the context is open."""
        bus = cls(clock=clock, streams=streams, max_payload=max_payload)
        async with in_background(bus._watch.run):
            yield bus

    def now(self) -> float:
        return anyio.current_time() if self._clock is None else self._clock.now

    def changed(self) -> None:
        """Wake the tasks that wait for a message or for a moment."""
        self._change.set()
        self._change = anyio.Event()

    def wipe(self) -> None:
        """Lose every stream, consumer and message, like a server after its store was deleted."""
        self._streams.clear()
        self._watch.ask()
        self.changed()

    # --- the port -------------------------------------------------------------------------------------------

    @property
    def reachable(self) -> bool:
        return True

    @property
    def max_payload(self) -> int:
        return self._max_payload

    async def ensure_streams(self) -> list[str]:
        return await self._watch.check()

    def on_stream_new(self, callback: StreamCallback) -> None:
        self._watch.on_stream_new(callback)

    def on_reconnect(self, callback: ReconnectCallback) -> None:
        self._watch.on_reconnect(callback)

    async def publish(self, message: Outgoing) -> bool:
        await anyio.lowlevel.checkpoint()
        headers = wire_headers(message)
        check_size(message, headers, self._max_payload)
        name = stream_name(message)
        if name not in self._streams:
            await self._watch.check()
        stream = self._streams[name]
        stored_at = stream.ids.get(message.msg_id)
        if stored_at is not None and self.now() - stored_at < subjects.DEDUP_WINDOW_S:
            return False
        self._make_room(stream, message)
        stream.last_seq += 1
        stored = _Stored(seq=stream.last_seq, subject=message.subject, headers=headers, body=message.body)
        stream.messages[stored.seq] = stored
        stream.ids[message.msg_id] = self.now()
        self.changed()
        return True

    async def publish_many(self, messages: Sequence[Outgoing]) -> list[bool | BusError]:
        results: list[bool | BusError] = []
        for message in messages:
            try:
                results.append(await self.publish(message))
            except BusError as error:
                results.append(error)
        return results

    async def notify(self, subject: str, body: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        for pattern, send in self._listeners:
            if subjects.matches(pattern, subject) and send.statistics().current_buffer_used < 4096:
                send.send_nowait(Notice(subject, body))

    @asynccontextmanager
    async def listen(self, subject: str) -> AsyncIterator[AsyncIterator[Notice]]:
        send, receive = anyio.create_memory_object_stream[Notice](4096)
        entry = (subject, send)
        self._listeners.append(entry)
        with send, receive:
            try:
                yield receive
            finally:
                self._listeners.remove(entry)

    @asynccontextmanager
    async def subscribe(self, consumer: Consumer, batch: int = 64) -> AsyncIterator[Subscription]:
        name = consumer.durable or f"private-{next(self._births)}"
        feed = Feed()

        async def pump() -> None:
            while True:
                await feed.wanted()
                for delivery in await self._fetch(consumer, name, batch):
                    if delivery.deliveries > consumer.max_deliver:
                        await self.dead_letter(delivery, undeliverable(delivery))
                    else:
                        feed.put(delivery)

        try:
            async with in_background(pump):
                yield feed
        finally:
            for delivery in feed.leftover():
                await delivery.nak()
            if consumer.durable is None and consumer.stream in self._streams:
                self._streams[consumer.stream].consumers.pop(name, None)

    async def dead_letter(self, message: Delivery | Outgoing, reason: str, *, kept: bool = False) -> None:
        await self.publish(dead_letter(message, reason, self._max_payload, kept=kept))
        if not isinstance(message, Outgoing):
            await message.term()

    # --- inside ---------------------------------------------------------------------------------------------

    async def _look(self) -> dict[str, Sighting]:
        await anyio.lowlevel.checkpoint()
        sightings = {}
        for spec in self._specs:
            created = spec.name not in self._streams
            if created:
                self._streams[spec.name] = _Stream(spec=spec, created=str(next(self._births)))
            stream = self._streams[spec.name]
            sightings[spec.name] = Sighting(stream.created, stream.last_seq, created)
        return sightings

    def _make_room(self, stream: _Stream, message: Outgoing) -> None:
        """Apply the stream's limits before one more message; StreamFull if it refuses."""
        spec, stored = stream.spec, stream.messages
        if spec.retention is Retention.LAST_PER_SUBJECT:
            for seq in [old.seq for old in stored.values() if old.subject == message.subject]:
                del stored[seq]
        while stored and (
            len(stored) >= spec.max_msgs
            or sum(len(old.body) for old in stored.values()) + len(message.body) > spec.max_bytes
        ):
            if spec.discard_new:
                raise StreamFull(f"the stream {spec.name} is full: {len(stored)} messages of {spec.max_msgs}")
            del stored[next(iter(stored))]

    async def _fetch(self, spec: Consumer, name: str, batch: int) -> list[MemoryDelivery]:
        """Wait until at least one message may be delivered, and count the deliveries."""
        while True:
            if spec.stream not in self._streams:
                await self._watch.check()
            stream = self._streams[spec.stream]
            consumer = self._consumer(stream, spec, name)
            now = self.now()
            waiting = [p.due for p in consumer.progress.values() if not p.settled and p.due > now]
            free = min(batch, spec.max_ack_pending - len(waiting))
            found: list[MemoryDelivery] = []
            for stored in stream.messages.values():
                if len(found) >= free:
                    break
                progress = consumer.progress.get(stored.seq, _Progress())
                if (
                    not progress.settled
                    and progress.due <= now
                    and subjects.matches(spec.filter, stored.subject)
                ):
                    progress.deliveries += 1
                    progress.due = now + spec.ack_wait_s
                    consumer.progress[stored.seq] = progress
                    found.append(MemoryDelivery(self, stream=stream, consumer=consumer, stored=stored))
            if found:
                return found
            change = self._change
            timeout_s = min(waiting) - now if waiting and self._clock is None else None
            with anyio.move_on_after(timeout_s):
                await change.wait()

    def _consumer(self, stream: _Stream, spec: Consumer, name: str) -> _Consumer:
        if name not in stream.consumers:
            if stream.spec.retention is Retention.WORK_QUEUE:
                for existing in stream.consumers.values():
                    if overlap(existing.spec.filter, spec.filter):
                        raise ConsumerConflict(conflict(spec))
            stream.consumers[name] = _Consumer(spec)
        stream.consumers[name].spec = spec
        return stream.consumers[name]


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns."""
    tokens, other_tokens = one.split("."), other.split(".")
    for a, b in zip(tokens, other_tokens, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(tokens) == len(other_tokens)
