"""One poll of the data pool for all browsers that follow live, and only while there are any.

| produces | waits for | unblocked by |
|---|---|---|
| a tick for every listener when something changed | listeners; time | a browser that opens /api/events |
| "away" and the first tick after it | Postgres | its return; a person, where it refuses the reading |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from orchestrator.contracts.errors import PenstockError
from orchestrator.pool.transact import DRIVER_ERRORS
from orchestrator.queries.changes import newest_ids
from orchestrator.runtime.liveness import current
from orchestrator.runtime.log import get
from orchestrator.web.database import Database
from orchestrator.web.metrics import WebMetrics

log = get(__name__)

PERIOD_S = 1.0
REFUSED = "PostgreSQL refuses what this page reads, and the dashboard's log says why; the page continues when that is repaired"
QUIET = 5  # polls without a change before a tick is sent anyway: recorded steps and heartbeats change none of the three counters


@dataclass(frozen=True, slots=True)
class Tick:
    """Something may have changed. `away`: why the data pool cannot be read; empty if it can."""

    n: int
    away: str = ""


@dataclass(slots=True, kw_only=True)
class ChangeFeed:
    """`run` polls while there are listeners. A slow listener misses ticks, not changes: one pending tick represents all."""

    database: Database
    metrics: WebMetrics
    _listeners: set[MemoryObjectSendStream[Tick]] = field(default_factory=set)
    _joined: anyio.Event = field(default_factory=anyio.Event)
    _n: int = 0

    @contextmanager
    def listening(self) -> Iterator[MemoryObjectReceiveStream[Tick]]:
        """Ticks, while the context is open."""
        send, receive = anyio.create_memory_object_stream[Tick](1)
        with send, receive:
            self._listeners.add(send)
            self.metrics.listeners.set(len(self._listeners))
            self._joined.set()
            try:
                yield receive
            finally:
                self._listeners.discard(send)
                self.metrics.listeners.set(len(self._listeners))

    async def run(self) -> None:
        """Poll until cancelled."""
        loop = current()
        while True:
            if not self._listeners:
                self._joined = anyio.Event()
                loop.idle("browsers")
                await self._joined.wait()
            await self._while_listened()

    async def _while_listened(self) -> None:
        before: object = None
        unchanged_reads = 0
        while self._listeners:
            current().busy("a look at the data pool")
            seen, outage = await self._look()
            unchanged_reads += 1
            if seen != before or unchanged_reads >= QUIET:
                before, unchanged_reads = seen, 0
                self._notify(outage)
            current().idle("time")
            await anyio.sleep(PERIOD_S)

    async def _look(self) -> tuple[object, str]:
        """(what the data pool has, why it cannot be read)."""
        try:
            return await self.database.read(newest_ids), ""
        except PenstockError as error:
            return (), str(error)
        except DRIVER_ERRORS as error:
            # A changed password, a missing right, a migration: a person repairs it while the dashboard runs.
            self.metrics.errors.labels("GET").inc()
            detail = str(error).partition("\n")[0][:200]
            log.error("change_feed.refused", error=type(error).__name__, detail=detail)
            return (), REFUSED

    def _notify(self, away: str) -> None:
        self._n += 1
        for listener in list(self._listeners):
            try:
                listener.send_nowait(Tick(self._n, away))
            except anyio.WouldBlock:
                continue
