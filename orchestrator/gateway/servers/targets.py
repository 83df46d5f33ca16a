"""The policy version that a rollout server should serve: the newest published one, or the one that an evaluation pins. The data pool says which;
the bus only triggers a read."""

from collections.abc import Awaitable, Callable

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


class TargetVersion:
    """The `version` that should serve, as `read` finds it in the data pool. `changed` is set, and replaced, when it changes."""

    def __init__(
        self,
        engine: AsyncEngine,
        run_id: int,
        read: Callable[[AsyncConnection, int], Awaitable[PolicyVersion | None]],
        *,
        poll_interval_s: float,
    ) -> None:
        self._engine = engine
        self._run_id = run_id
        self._read = read
        self._poll_interval_s = poll_interval_s
        self.version: PolicyVersion | None = None
        self.changed = anyio.Event()
        self._reading = anyio.Lock()

    async def refresh(self) -> None:
        """Read the data pool. Only one read runs at a time, so that of two reads the later one has the newer version."""
        async with self._reading:
            version = await transact(
                self._engine, lambda connection: self._read(connection, self._run_id), at="gateway.read"
            )
            if version != self.version:
                self.version = version
                self.changed.set()
                self.changed = anyio.Event()

    async def watch(self) -> None:
        """Refresh every `poll_interval_s` seconds, until cancelled: a bus that was wiped must not keep old weights serving."""
        while True:
            await self.refresh()
            await pause(self._poll_interval_s)


async def evaluated_or_newest(connection: AsyncConnection, run_id: int) -> PolicyVersion | None:
    """The version for a server that is reserved for evaluations: the one that the current evaluation pins, else the newest."""
    version = await evaluated_version(connection, run_id)
    return version or await newest_version(connection, run_id)


async def announcements(target: TargetVersion, bus: Bus, run: str, metrics: GatewayMetrics) -> None:
    """Refresh `target` at every announcement, until cancelled. Invalid announcements are counted and logged. The content of announcements is not
    trusted: the versions come from the data pool."""
    async with bus.subscribe(subjects.consume_policy(run)) as published:
        while True:
            current().idle("POLICY")
            announced = await published.take(64)
            current().busy("a published version")
            for delivery in announced:
                with apart("policy", subject=delivery.subject):
                    _check(delivery, run, metrics)
                await delivery.ack()
            await target.refresh()


def _check(delivery: Delivery, run: str, metrics: GatewayMetrics) -> None:
    try:
        event = decode(delivery.body, delivery.schema, PolicyPublished)
        if event.run != run:
            raise MessageError(f"PolicyPublished: it is of the run {quoted(event.run)}")
        if event.version < 0:
            raise MessageError(f"PolicyPublished: version {event.version} does not exist")
    except MessageError as error:
        metrics.announcements_refused.inc()
        log.warning("announcement.refused", msg_id=delivery.msg_id, reason=str(error))
