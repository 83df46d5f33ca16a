"""Consuming from JetStream: one pull request at a time, on demand, with a watchdog.

The pull protocol is spoken directly (a request to ``$JS.API.CONSUMER.MSG.NEXT…`` whose answers arrive in an inbox),
because every answer matters here: a message, an idle heartbeat (status 100), the end of a request (404, 408), or the
loss of the consumer or stream (409, 503). An inbox that is silent for longer than two heartbeats is
replaced: pull subscriptions can hang without an error.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import msgspec
import nats.errors
from anyio.streams.memory import MemoryObjectReceiveStream
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from orchestrator.bus import subjects
from orchestrator.bus.base import BusError, ConsumerConflict, Delivery
from orchestrator.bus.client import answered
from orchestrator.bus.dead_letters import conflict, undeliverable
from orchestrator.bus.feed import Feed
from orchestrator.bus.link import Connection, Link, LinkLost, delays
from orchestrator.bus.subjects import Consumer
from orchestrator.bus.watch import StreamWatch
from orchestrator.runtime.failpoints import boundary
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import BusMetrics, measured
from orchestrator.settings.timeouts import Timeouts

log = get(__name__)

_OVERLAP_ERRORS = (10099, 10100)  # work queue: consumer must be filtered / not unique
_PRIVATE_KEPT_S = 60.0  # how long the server keeps a private consumer without a reader


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A request is repeated when it expires. An inbox is abandoned after two missed heartbeats."""

    expires_s: float
    heartbeat_s: float
    poll_interval_s: float  # between two checks for new streams

    @classmethod
    def of(cls, settings: Timeouts) -> "Timing":
        return cls(settings.bus_fetch_s, settings.bus_heartbeat_s, settings.bus_poll_interval_s)


class Lapsed(Exception):
    """This inbox or consumer delivers nothing more; the text gives the reason."""


class NatsDelivery:
    """See `Delivery`. Settled over the current connection: the reply subject outlives a connection."""

    __slots__ = ("_done", "_link", "_message", "deliveries", "stream", "subject")

    def __init__(self, link: Link, *, stream: str, subject: str, message: Any, deliveries: int) -> None:
        self._link, self._message = link, message
        self.stream, self.subject, self.deliveries = stream, subject, deliveries
        self._done = False

    @property
    def headers(self) -> Mapping[str, str]:
        return self._message.headers or {}

    @property
    def body(self) -> bytes:
        body: bytes = self._message.data
        return body

    @property
    def schema(self) -> str | None:
        return self.headers.get(subjects.HEADER_SCHEMA) or None

    @property
    def msg_id(self) -> str | None:
        return self.headers.get(subjects.HEADER_MSG_ID) or None

    async def ack(self) -> None:
        await self._settle(b"+ACK", at=f"ack.{subjects.kind_of(self.subject)}")

    async def nak(self, delay_s: float = 0.0) -> None:
        await self._settle(b'-NAK {"delay": %d}' % int(delay_s * 1e9) if delay_s > 0 else b"-NAK", at="nak")

    async def term(self) -> None:
        await self._settle(b"+TERM", at="term")

    async def in_progress(self) -> None:
        if not self._done:
            await self._say(b"+WPI", at="nak")

    async def _settle(self, word: bytes, *, at: str) -> None:
        if not self._done:
            self._done = True
            await self._say(word, at=at)

    async def _say(self, word: bytes, *, at: str) -> None:
        connection = self._link.current
        if connection is None:
            log.debug("settling_lost", subject=self.subject, word=word)
            return
        try:
            await boundary(at, partial(connection.client.publish, self._message.reply, word))
        except (OSError, nats.errors.Error) as error:
            log.debug("settling_lost", subject=self.subject, word=word, error=repr(error))


def deliveries_of(message: Any) -> int | None:
    """How often a stored message was delivered; None for every other message.

    Its reply subject tells it: `$JS.ACK[.<domain>.<account>].<stream>.<consumer>.<deliveries>.…`, 9 tokens, or 11 and more. The server lets no
    client send one. Headers tell nothing: a sender may write any, also those of a status.
    """
    tokens = message.reply.split(".")
    place = 4 if len(tokens) == 9 else 6
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) < 9:
        return None
    number = tokens[place]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else None


class Puller:
    """Fills one `Feed` from one consumer, through reconnections, wiped stores and silent inboxes."""

    def __init__(
        self,
        link: Link,
        *,
        watch: StreamWatch,
        consumer: Consumer,
        feed: Feed,
        batch: int,
        timing: Timing,
        stream: str,
        subject_prefix: str,
        bury: Callable[[Delivery, str], Awaitable[None]],
    ) -> None:
        self._link, self._watch, self._consumer, self._feed = link, watch, consumer, feed
        self._batch, self._timing = batch, timing
        self._stream = stream  # its name at the server
        self._subject_prefix = subject_prefix
        self._bury = bury
        self._name = consumer.durable  # the server names a private consumer

    async def run(self) -> None:
        """Run until cancelled. Raises ConsumerConflict."""
        pauses = delays()
        while True:
            try:
                async with self._link.session() as connection:
                    await self._ensure(connection)
                    pauses = delays()
                    await self._serve(connection)
            except LinkLost:
                continue
            except NotFoundError:
                log.info("stream_missing", stream=self._stream)
                await self._watch.check()
            except Lapsed as reason:
                log.info("pull_lapsed", consumer=self._name, stream=self._stream, reason=str(reason))
                await self._watch.check()
            except (OSError, nats.errors.Error) as error:
                log.warning("pull_failed", consumer=self._name, stream=self._stream, error=repr(error))
            await anyio.sleep(next(pauses))

    async def remove(self) -> None:
        """Delete a private consumer, so that the server need not keep it."""
        connection = self._link.current
        if self._consumer.durable is None and self._name is not None and connection is not None:
            try:
                await answered(partial(connection.js.delete_consumer, self._stream, self._name))
            except (OSError, nats.errors.Error) as error:
                log.debug("private_consumer_left", consumer=self._name, error=repr(error))

    async def _ensure(self, connection: Connection) -> None:
        """Create the consumer, or update an existing consumer to these limits."""
        spec = self._consumer
        if spec.durable is None and self._name is not None:
            try:
                await answered(partial(connection.js.consumer_info, self._stream, self._name))
                return
            except NotFoundError:
                self._name = None
        config = api.ConsumerConfig(
            durable_name=spec.durable,
            filter_subject=self._subject_prefix + spec.filter,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=spec.ack_wait_s,
            max_ack_pending=spec.max_ack_pending,
            max_deliver=-1,  # ours, see `Consumer`
            max_waiting=512,
            inactive_threshold=_PRIVATE_KEPT_S if spec.durable is None else None,
        )
        try:
            info = await answered(partial(connection.js.add_consumer, self._stream, config))
        except APIError as error:
            if error.err_code in _OVERLAP_ERRORS:
                raise ConsumerConflict(conflict(spec)) from error
            raise
        self._name = info.name

    async def _serve(self, connection: Connection) -> None:
        """Pull into a fresh inbox until it lapses."""
        deliver, arrived = anyio.create_memory_object_stream[Any](float("inf"))  # bounded by the requests

        async def hand_over(message: Any) -> None:
            deliver.send_nowait(message)

        with deliver, arrived:
            inbox = connection.client.new_inbox()
            subscription = await connection.client.subscribe(inbox, cb=hand_over)
            try:
                while True:
                    await self._feed.wanted()
                    request = {
                        "batch": self._batch,
                        "expires": int(self._timing.expires_s * 1e9),
                        "idle_heartbeat": int(self._timing.heartbeat_s * 1e9),
                    }
                    subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
                    body = msgspec.json.encode(request)
                    await boundary("fetch", partial(connection.client.publish, subject, body, reply=inbox))
                    await self._receive(arrived)
            finally:
                with anyio.move_on_after(1, shield=True):
                    await self._abandon(connection, subscription, arrived)

    async def _receive(self, arrived: MemoryObjectReceiveStream[Any]) -> None:
        """Pass on the messages of one request. Return when the request has ended."""
        remaining = self._batch
        while remaining:
            try:
                message = arrived.receive_nowait()  # no trip through the event loop while there is more
            except anyio.WouldBlock:
                try:
                    with anyio.fail_after(2.5 * self._timing.heartbeat_s):
                        message = await arrived.receive()
                except TimeoutError:
                    raise Lapsed("silent for more than two heartbeats") from None
            if (deliveries := deliveries_of(message)) is not None:
                remaining -= 1
                await self._deliver(message, deliveries)
                continue
            match (message.headers or {}).get("Status"):
                case None:  # not of NATS: anyone may publish to an inbox
                    measured(BusMetrics).unread.labels("pull").inc()
                    log.warning("message.dropped", consumer=self._name, body=repr(message.data[:80]))
                case "100":  # idle heartbeat
                    pass
                case "404" | "408":  # no messages, request expired
                    return
                case status:
                    raise Lapsed(f"{status} {message.headers.get('Description', 'no such consumer')}")

    async def _deliver(self, message: Any, deliveries: int) -> None:
        delivery = self._delivery(message, deliveries)
        if deliveries <= self._consumer.max_deliver:
            self._feed.put(delivery)
            return
        try:
            await self._bury(delivery, undeliverable(delivery))
        except BusError as error:  # it is stored nowhere else, so it comes again
            log.error("dead_letter.refused", subject=delivery.subject, error=str(error))
            await delivery.nak(self._consumer.ack_wait_s)

    def _delivery(self, message: Any, deliveries: int) -> NatsDelivery:
        return NatsDelivery(
            self._link,
            stream=self._consumer.stream,
            subject=message.subject.removeprefix(self._subject_prefix),
            message=message,
            deliveries=deliveries,
        )

    async def _abandon(
        self, connection: Connection, subscription: Any, arrived: MemoryObjectReceiveStream[Any]
    ) -> None:
        """Leave the inbox and return its messages to the stream."""
        while arrived.statistics().current_buffer_used:
            message = arrived.receive_nowait()
            if (deliveries := deliveries_of(message)) is not None:
                await self._delivery(message, deliveries).nak()
        if not connection.lost.is_set():
            try:
                await subscription.unsubscribe()
            except (OSError, nats.errors.Error) as error:
                log.debug("unsubscribe_failed", error=repr(error))
