"""Notices that a stream is missing, new, or lost its tail, and tells those who can publish its content again.

One mechanism for every way in which a transport loses messages. It looks when asked (a publish found no stream, a
consumer vanished, the connection came back) and every ``period_s`` seconds, so that a process which only publishes
rarely notices as well.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import structlog

from orchestrator.bus.base import ReconnectCallback, StreamCallback
from orchestrator.progress import looping

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a look at one stream found. ``created`` is an identity: it differs for each new stream of that name."""

    created: str
    last_seq: int
    made: bool  # it was missing and this look created it


class StreamWatch:
    """Compares sightings with what was seen before. ``look`` creates what is missing and may block while away."""

    def __init__(self, look: Callable[[], Awaitable[dict[str, Sighting]]], period_s: float | None) -> None:
        self._look = look
        self._period_s = period_s
        self._created: dict[str, str] = {}
        self._highest: dict[str, int] = {}  # the highest sequence known to be stored, per stream
        self._unreported: dict[str, None] = {}  # names in the order found, for the callbacks
        self._reconnected = False
        self._asked = anyio.Event()
        self._looking = anyio.Lock()
        self._stream_callbacks: list[StreamCallback] = []
        self._reconnect_callbacks: list[ReconnectCallback] = []

    def on_stream_new(self, callback: StreamCallback) -> None:
        self._stream_callbacks.append(callback)

    def on_reconnect(self, callback: ReconnectCallback) -> None:
        self._reconnect_callbacks.append(callback)

    def stored(self, stream: str, seq: int) -> None:
        """Remember that the server confirmed message ``seq``: a stream that ends before it has lost something."""
        if seq > self._highest.get(stream, 0):
            self._highest[stream] = seq

    def ask(self) -> None:
        """Look soon."""
        self._asked.set()

    def reconnected(self) -> None:
        """Look now, then tell the reconnect callbacks."""
        self._reconnected = True
        self._asked.set()

    async def check(self) -> list[str]:
        """Look; return the streams that are missing (created by this look), new, or shorter than known."""
        async with self._looking:
            highest = dict(self._highest)  # before the look: what is stored meanwhile must not count as lost
            fresh = []
            for name, seen in (await self._look()).items():
                replaced = self._created.get(name, seen.created) != seen.created
                shorter = seen.last_seq < highest.get(name, 0)
                if seen.made or replaced or shorter:
                    log.warning("stream_new", stream=name, made=seen.made, replaced=replaced, shorter=shorter)
                    fresh.append(name)
                    self._highest[name] = seen.last_seq
                else:
                    self.stored(name, seen.last_seq)
                self._created[name] = seen.created
            if fresh:
                self._unreported.update(dict.fromkeys(fresh))
                self._asked.set()
            return fresh

    async def run(self) -> None:
        """Look and report, for ever. The only place where callbacks run, so they may publish and may block."""
        with looping("bus.streams") as loop:
            while True:
                loop.rests("time")
                with anyio.move_on_after(self._period_s):
                    await self._asked.wait()
                self._asked = anyio.Event()
                reconnected, self._reconnected = self._reconnected, False
                loop.works("a look at the streams", on="nats")
                await self.check()
                while self._unreported:
                    name = next(iter(self._unreported))
                    del self._unreported[name]
                    for stream_callback in self._stream_callbacks:
                        loop.works(f"what stream {name} lost")
                        await stream_callback(name)
                if reconnected:
                    for reconnect_callback in self._reconnect_callbacks:
                        loop.works("what is sent again on a new connection")
                        await reconnect_callback()
