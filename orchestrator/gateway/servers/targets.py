"""The policy version that a rollout server should serve: the newest published one, or the one that an evaluation pins."""

from typing import Protocol

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, Delivery
from orchestrator.bus.message_guard import apart
from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import PolicyPublished, decode
from orchestrator.contracts.quote import quoted
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.pool.policy_versions import PolicyVersion, evaluated_version, newest_version
from orchestrator.pool.transact import transact
from orchestrator.runtime.liveness import current, pause
from orchestrator.runtime.log import get

log = get(__name__)


class Targets(Protocol):
    """The version that should serve; `moved` is set, and replaced, when it changes."""

    newest: PolicyVersion | None
    moved: anyio.Event


class PublishedVersions:
    """The newest version in the data pool. The bus only triggers a refresh."""

    def __init__(
        self, engine: AsyncEngine, run_id: int, metrics: GatewayMetrics, *, poll_interval_s: float
    ) -> None:
        self._metrics = metrics
        self._engine = engine
        self._run_id = run_id
        self._poll_interval_s = poll_interval_s
        self.newest: PolicyVersion | None = None
        self.moved = anyio.Event()
        self._looking = anyio.Lock()

    async def refresh(self) -> None:
        """Read the data pool. Only one read runs at a time, so that of two reads the later one has the newer version."""
        async with self._looking:
            newest = await transact(
                self._engine, lambda connection: newest_version(connection, self._run_id), at="gateway.read"
            )
            if newest != self.newest:
                self.newest = newest
                self.moved.set()
                self.moved = anyio.Event()

    async def follow(self, bus: Bus, run: str) -> None:
        """Refresh at every announcement, until cancelled. Invalid announcements are counted and logged. The content of announcements is not
        trusted: the versions come from the data pool."""
        async with bus.subscribe(subjects.consume_policy(run)) as published:
            while True:
                current().idle("POLICY")
                announced = await published.take(64)
                current().busy("a published version")
                for delivery in announced:
                    with apart("policy", subject=delivery.subject):
                        self._read(delivery, run)
                    await delivery.ack()
                await self.refresh()

    def _read(self, delivery: Delivery, run: str) -> None:
        try:
            event = decode(delivery.body, delivery.schema, PolicyPublished)
            if event.run != run:
                raise MessageError(f"PolicyPublished: it is of the run {quoted(event.run)}")
            if event.version < 0:
                raise MessageError(f"PolicyPublished: version {event.version} does not exist")
        except MessageError as error:
            self._metrics.announcements_refused.inc()
            log.warning("announcement.refused", msg_id=delivery.msg_id, reason=str(error))

    async def watch(self) -> None:
        """Refresh every `poll_interval_s` seconds, until cancelled: a bus that was wiped must not keep old weights serving."""
        while True:
            await self.refresh()
            await pause(self._poll_interval_s)


class EvaluatedVersions:
    """The version that a server reserved for evaluations should serve: the one that the current evaluation pins, else the newest."""

    def __init__(self, engine: AsyncEngine, run_id: int, *, poll_interval_s: float) -> None:
        self._engine = engine
        self._run_id = run_id
        self._poll_interval_s = poll_interval_s
        self.newest: PolicyVersion | None = None
        self.moved = anyio.Event()

    async def watch(self) -> None:
        """Read the data pool every `poll_interval_s` seconds, until cancelled."""

        async def work(connection: AsyncConnection) -> PolicyVersion | None:
            version = await evaluated_version(connection, self._run_id)
            return version or await newest_version(connection, self._run_id)

        while True:
            version = await transact(self._engine, work, at="gateway.read")
            if version != self.newest:
                self.newest = version
                self.moved.set()
                self.moved = anyio.Event()
            await pause(self._poll_interval_s)
