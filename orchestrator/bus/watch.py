"""Detects streams that are missing, new, or without their tail, and calls the callbacks that can publish the content again.

One mechanism covers every way in which a transport loses messages. It checks on request (a publish found no stream, a
consumer vanished, the connection came back) and every ``period_s`` seconds, so that a process which only publishes
rarely also notices.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from orchestrator.bus.base import ReconnectCallback, StreamCallback
from orchestrator.runtime.liveness import track_loop
from orchestrator.runtime.log import get

log = get(__name__)


@dataclass(frozen=True, slots=True)
class Sighting:
    """The result of checking one stream. ``created`` is an identity: it differs for each new stream of that name."""

    created: str
    last_seq: int
    made: bool  # it was missing and this check created it


class StreamWatch:
    """Compares sightings with earlier ones. ``look`` creates missing streams and may block while the server is unreachable."""

    def __init__(self, look: Callable[[], Awaitable[dict[str, Sighting]]], period_s: float | None) -> None:
        self._look = look
        self._period_s = period_s
        self._created: dict[str, str] = {}
        self._highest: dict[str, int] = {}  # the highest stored sequence known per stream
        self._unreported: dict[str, None] = {}  # names in the order found, for the callbacks
        self._reconnected = False
        self._check_requested = anyio.Event()
        self._looking = anyio.Lock()
        self._stream_callbacks: list[StreamCallback] = []
        self._reconnect_callbacks: list[ReconnectCallback] = []

    def on_stream_new(self, callback: StreamCallback) -> None:
        self._stream_callbacks.append(callback)

    def on_reconnect(self, callback: ReconnectCallback) -> None:
        self._reconnect_callbacks.append(callback)

    def stored(self, stream: str, seq: int) -> None:
        """Record that the server confirmed message ``seq``: a stream that ends before it has lost messages."""
        if seq > self._highest.get(stream, 0):
            self._highest[stream] = seq

    def ask(self) -> None:
        """Check soon."""
        self._check_requested.set()

    def reconnected(self) -> None:
        """Check now, then call the reconnect callbacks."""
        self._reconnected = True
        self._check_requested.set()

    async def check(self) -> list[str]:
        """Check the streams. Return those that are missing (created by this check), new, or shorter than known."""
        async with self._looking:
            highest = dict(self._highest)  # before the check: later messages must not count as lost
            new_streams = []
            for name, sighting in (await self._look()).items():
                replaced = self._created.get(name, sighting.created) != sighting.created
                shorter = sighting.last_seq < highest.get(name, 0)
                if sighting.made or replaced or shorter:
                    # The first check of a process creates missing streams: this is how every run starts.
                    log_event = (
                        log.info
                        if sighting.made and name not in self._created and not shorter
                        else log.warning
                    )
                    log_event(
                        "stream_new", stream=name, made=sighting.made, replaced=replaced, shorter=shorter
                    )
                    new_streams.append(name)
                    self._highest[name] = sighting.last_seq
                else:
                    self.stored(name, sighting.last_seq)
                self._created[name] = sighting.created
            if new_streams:
                self._unreported.update(dict.fromkeys(new_streams))
                self._check_requested.set()
            return new_streams

    async def run(self) -> None:
        """Check and report, without end. Callbacks run only here, so they may publish and may block."""
        with track_loop("bus.streams") as loop:
            while True:
                loop.idle("time")
                with anyio.move_on_after(self._period_s):
                    await self._check_requested.wait()
                self._check_requested = anyio.Event()
                reconnected, self._reconnected = self._reconnected, False
                loop.busy("a look at the streams", on="nats")
                await self.check()
                while self._unreported:
                    name = next(iter(self._unreported))
                    del self._unreported[name]
                    for stream_callback in self._stream_callbacks:
                        loop.busy(f"what stream {name} lost")
                        await stream_callback(name)
                if reconnected:
                    for reconnect_callback in self._reconnect_callbacks:
                        loop.busy("what is sent again on a new connection")
                        await reconnect_callback()
