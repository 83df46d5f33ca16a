"""The bus over NATS JetStream.

The parts: `Link` keeps a connection · `Puller` consumes · `StreamWatch` notices wiped streams · this file creates
the streams, publishes, and puts the three together. The names on the wire carry an optional prefix, so that tests (or
two installations) can share a server without conflict.
"""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import nats.errors
from nats.js import api
from nats.js.errors import APIError, BadRequestError, NoStreamResponseError, NotFoundError

from orchestrator.bus import subjects
from orchestrator.bus.base import (
    BusError,
    Delivery,
    Notice,
    Outgoing,
    ReconnectCallback,
    StreamCallback,
    StreamFull,
    Subscription,
    Unsendable,
)
from orchestrator.bus.client import BadAnswer, answered
from orchestrator.bus.dead_letters import dead_letter
from orchestrator.bus.feed import Feed, in_background
from orchestrator.bus.link import LEADERLESS_S, Connection, Link, LinkLost, delays, urls_of
from orchestrator.bus.pull import Puller, Timing
from orchestrator.bus.subjects import Consumer, Retention, Stream
from orchestrator.bus.watch import Sighting, StreamWatch
from orchestrator.bus.wire import check_size, stream_name, wire_headers
from orchestrator.contracts.ids import check_name
from orchestrator.contracts.quote import quoted
from orchestrator.runtime.failpoints import boundary
from orchestrator.runtime.liveness import waiting_for
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import BusMetrics, measured
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

_FULL_ERRORS = (10023, 10028, 10047, 10077)  # no resources, memory, storage; store failed (limits, disk)
_UNSENDABLE = (nats.errors.BadHeaderError, nats.errors.BadSubjectError, nats.errors.MaxPayloadError)
_NAME_IN_USE = 10058  # another process has just created the stream
_PUBLISH_WINDOW = 64  # concurrent publishes of one `publish_many`; 256 tasks take a third more CPU time
_NOTICE_BUFFER = 4096
_GLANCES = 40  # the first 40 attempts of a publish that finds no stream limit the check to LEADERLESS_S each
REPLICAS = 3
"""Replicas of each stream in a cluster: an acknowledged message survives the loss of one server."""


class NatsBus:
    """See `Bus`. Created by `connect`."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        prefix: str,
        timing: Timing,
        streams: Sequence[Stream] = subjects.STREAMS,
    ) -> None:
        self._subject_prefix = f"{prefix}." if prefix else ""
        self._stream_prefix = f"{prefix.upper()}_" if prefix else ""
        self._timing = timing
        self._specs = streams
        self._replicas = REPLICAS if len(urls_of(url)) >= REPLICAS else 1
        self._adjusted = False
        self._watch = StreamWatch(self._look, timing.poll_interval_s)
        self._link = Link(url, name, on_up=self._watch.reconnected)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        name: str = "penstock",
        prefix: str = "",
        timing: Timing | None = None,
        patience_s: float = 10.0,
        streams: Sequence[Stream] = subjects.STREAMS,
    ) -> AsyncIterator["NatsBus"]:
        """Connect, keep connected while the context is open, and close. ``url`` names one server, or the servers of one cluster with commas
        between them. With three or more servers, new and existing streams get three replicas.

        ``name`` appears in the server's monitoring. Raises BusUnavailable if no server answers for ``patience_s``
        seconds, UnfitServer if the server is older than 2.10, has no JetStream or accepts too small messages.
        """
        if prefix:
            check_name("prefix", prefix)
        bus = cls(url, name=name, prefix=prefix, timing=timing or Timing.of(timeouts()), streams=streams)
        await bus._link.open(patience_s)
        try:
            async with in_background(bus._run):
                yield bus
        finally:
            await bus._link.close()

    # --- the port -------------------------------------------------------------------------------------------

    @property
    def reachable(self) -> bool:
        connection = self._link.current
        return connection is not None and not connection.lost.is_set()

    @property
    def max_payload(self) -> int:
        return self._link.max_payload

    async def ensure_streams(self) -> list[str]:
        return await self._watch.check()

    def on_stream_new(self, callback: StreamCallback) -> None:
        self._watch.on_stream_new(callback)

    def on_reconnect(self, callback: ReconnectCallback) -> None:
        self._watch.on_reconnect(callback)

    async def publish(self, message: Outgoing) -> bool:
        headers = wire_headers(message)
        metrics, kind = measured(BusMetrics), subjects.kind_of(message.subject)
        started = time.perf_counter()
        try:
            stream = stream_name(message)
            check_size(message, headers, self._link.max_payload)
            with waiting_for("nats"):
                stored = await self._until_stored(stream, message, headers)
        except BusError:
            metrics.refused.labels(kind).inc()
            raise
        metrics.publish_s.labels(kind).observe(time.perf_counter() - started)
        return stored

    async def _until_stored(self, stream: str, message: Outgoing, headers: Mapping[str, str]) -> bool:
        for attempt, delay in enumerate(delays()):
            try:
                async with self._link.session() as connection:
                    subject = self._subject_prefix + message.subject
                    ack = await boundary(
                        f"publish.{subjects.kind_of(message.subject)}",
                        partial(
                            answered, partial(connection.js.publish, subject, message.body, headers=headers)
                        ),
                    )
                    if not isinstance(ack.seq, int):
                        raise BadAnswer(f"an answer is not of NATS: {quoted(ack)}")
                self._watch.stored(stream, ack.seq)
                return not ack.duplicate
            except LinkLost:
                continue
            except NoStreamResponseError:  # the stream is gone, or its replicas elect a leader, which is ready before all streams are checked
                early = attempt < _GLANCES
                with anyio.move_on_after(LEADERLESS_S if early else None):
                    await self._watch.check()
                delay = min(delay, LEADERLESS_S) if early else delay
            except APIError as error:
                if error.err_code in _FULL_ERRORS:
                    raise StreamFull(
                        f"the stream {stream} refuses new messages: {error.description}"
                    ) from error
                if error.code is not None and 400 <= error.code < 500:
                    raise BusError(
                        f"NATS refused a message for {message.subject}: {error.description}"
                    ) from error
                log.warning("publish_refused", subject=message.subject, error=repr(error))
            except _UNSENDABLE as error:
                raise Unsendable(f"NATS carries no such message for {message.subject}: {error}") from error
            except (OSError, nats.errors.Error) as error:
                log.warning("publish_failed", subject=message.subject, error=repr(error))
            await anyio.sleep(delay)
        raise AssertionError("delays never end")

    async def publish_many(self, messages: Sequence[Outgoing]) -> list[bool | BusError]:
        results: list[bool | BusError] = [False] * len(messages)
        remaining = iter(enumerate(messages))

        async def work() -> None:
            for index, message in remaining:
                try:
                    results[index] = await self.publish(message)
                except BusError as error:
                    results[index] = error

        if len(messages) == 1:
            await work()
            return results
        async with anyio.create_task_group() as group:
            for _ in range(min(_PUBLISH_WINDOW, len(messages))):
                group.start_soon(work)
        return results

    async def notify(self, subject: str, body: bytes) -> None:
        connection = self._link.current
        if connection is None:
            log.debug("notice_lost", subject=subject)
            return
        try:
            await boundary("notify", partial(connection.client.publish, self._subject_prefix + subject, body))
        except (OSError, nats.errors.Error) as error:
            log.debug("notice_lost", subject=subject, error=repr(error))

    @asynccontextmanager
    async def listen(self, subject: str) -> AsyncIterator[AsyncIterator[Notice]]:
        send, receive = anyio.create_memory_object_stream[Notice](_NOTICE_BUFFER)
        subscribed = anyio.Event()

        async def hand_over(message: Any) -> None:
            try:
                send.send_nowait(Notice(message.subject.removeprefix(self._subject_prefix), message.data))
            except anyio.WouldBlock:
                log.debug("notice_dropped", subject=subject)

        async def receive_notices() -> None:
            for delay in delays():
                try:
                    async with self._link.session() as connection:
                        subscription = await connection.client.subscribe(
                            self._subject_prefix + subject, cb=hand_over
                        )
                        try:
                            await connection.client.flush()
                            subscribed.set()
                            await anyio.sleep_forever()
                        finally:
                            await _unsubscribe(connection, subscription)
                except LinkLost:
                    continue
                except (OSError, nats.errors.Error) as error:
                    log.warning("listen_failed", subject=subject, error=repr(error))
                await anyio.sleep(delay)

        with send, receive:
            async with in_background(receive_notices):
                await subscribed.wait()
                yield receive

    @asynccontextmanager
    async def subscribe(self, consumer: Consumer, batch: int = 64) -> AsyncIterator[Subscription]:
        feed = Feed()
        puller = Puller(
            self._link,
            watch=self._watch,
            consumer=consumer,
            feed=feed,
            batch=batch,
            timing=self._timing,
            stream=self._stream_prefix + consumer.stream,
            subject_prefix=self._subject_prefix,
            bury=self.dead_letter,
        )
        try:
            async with in_background(puller.run):
                yield feed
        finally:
            with anyio.move_on_after(1, shield=True):
                for delivery in feed.leftover():
                    await delivery.nak()
                await puller.remove()

    async def dead_letter(self, message: Delivery | Outgoing, reason: str, *, kept: bool = False) -> None:
        await self.publish(dead_letter(message, reason, self._link.max_payload, kept=kept))
        if not isinstance(message, Outgoing):
            await message.term()

    # --- inside ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._link.run)
            group.start_soon(self._watch.run)

    async def _look(self) -> dict[str, Sighting]:
        """Check every stream and create missing streams. Blocks while the server is unreachable."""
        for delay in delays():
            try:
                async with self._link.session() as connection:
                    sightings = {spec.name: await self._look_at(connection, spec) for spec in self._specs}
                    self._adjusted = True
                    return sightings
            except LinkLost:
                continue
            except BadRequestError as error:
                raise BusError(f"NATS refused to create or change a stream: {error.description}") from error
            except (OSError, nats.errors.Error) as error:
                log.warning("look_failed", error=repr(error))
            await anyio.sleep(delay)
        raise AssertionError("delays never end")

    async def _look_at(self, connection: Connection, spec: Stream) -> Sighting:
        name, created = self._stream_prefix + spec.name, False
        try:
            info = await answered(partial(connection.js.stream_info, name))
        except NotFoundError:
            try:
                config = self._config(spec, first_seq=time.time_ns() // 1000)
                info = await answered(partial(connection.js.add_stream, config))
                created = True
            except BadRequestError as error:
                if error.err_code != _NAME_IN_USE:
                    raise
                info = await answered(partial(connection.js.stream_info, name))
        if not self._adjusted and not created:
            desired = self._config(spec, first_seq=info.config.first_seq)
            # A process that knows only one server of a cluster must not remove replicas.
            desired.num_replicas = max(self._replicas, info.config.num_replicas or 1)
            if _differs(info.config, desired):
                log.info("stream_changed", stream=name)
                info = await answered(partial(connection.js.update_stream, desired))
        return Sighting(str(info.created), info.state.last_seq, created)

    def _config(self, spec: Stream, first_seq: int | None) -> api.StreamConfig:
        """The server's form of a stream.

        A new stream counts from the microsecond of its creation, so that no sequence number of a wiped stream is used
        again: an acknowledgement in flight during the wipe can never settle a message of the new stream.
        """
        by_retention = {
            Retention.WORK_QUEUE: api.RetentionPolicy.WORK_QUEUE,
            Retention.LAST_PER_SUBJECT: api.RetentionPolicy.LIMITS,
            Retention.LIMITS: api.RetentionPolicy.LIMITS,
        }
        return api.StreamConfig(
            name=self._stream_prefix + spec.name,
            subjects=[self._subject_prefix + subject for subject in spec.subjects],
            retention=by_retention[spec.retention],
            discard=api.DiscardPolicy.NEW if spec.discard_new else api.DiscardPolicy.OLD,
            max_msgs=spec.max_msgs,
            max_bytes=spec.max_bytes,
            max_age=spec.max_age_s,
            max_msgs_per_subject=1 if spec.retention is Retention.LAST_PER_SUBJECT else -1,
            duplicate_window=subjects.DEDUP_WINDOW_S,
            storage=api.StorageType.FILE,
            num_replicas=self._replicas,
            first_seq=first_seq,
        )


def _differs(have: Any, wanted: Any) -> bool:
    """Whether a value that we set differs. Values that the server adds do not count."""
    fields = (
        "subjects",
        "discard",
        "max_msgs",
        "max_bytes",
        "max_age",
        "max_msgs_per_subject",
        "duplicate_window",
        "num_replicas",
    )
    return any(getattr(have, key) != getattr(wanted, key) for key in fields)


async def _unsubscribe(connection: Connection, subscription: Any) -> None:
    if not connection.lost.is_set():
        with anyio.move_on_after(1, shield=True):
            try:
                await subscription.unsubscribe()
            except (OSError, nats.errors.Error) as error:
                log.debug("unsubscribe_failed", error=repr(error))
