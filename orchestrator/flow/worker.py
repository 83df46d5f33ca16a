"""What a runner and a verifier runner have in common: settings, connections, and the journal that carries their results.

A worker owns nothing that a restart would miss. Told to stop, it gives its leases back. After kill -9: sandboxes of the dead process are
removed when the next one starts, or by another worker of this machine, what its journal holds is sent again, and its leases expire by their
time to live.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from scaffolds.base import Needs
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator import plugins
from orchestrator.bus.base import Bus
from orchestrator.bus.courier import Courier
from orchestrator.bus.feed import beside
from orchestrator.bus.journal import Entry, Journal
from orchestrator.bus.nats import NatsBus
from orchestrator.clock import clock
from orchestrator.config import Config, SandboxSection
from orchestrator.contracts.errors import ServiceError
from orchestrator.flow.heartbeat import Heart
from orchestrator.flow.measured import WorkerMetrics
from orchestrator.flow.oversize import failed_instead
from orchestrator.flow.tidy import tidy
from orchestrator.log import bind, get
from orchestrator.metrics import measured
from orchestrator.pool.confirm import MessageKey, settled
from orchestrator.pool.engine import Role, check_revision, open_engine
from orchestrator.pool.orders import Orders
from orchestrator.pool.presence import announced
from orchestrator.pool.runs import get_run
from orchestrator.pool.transact import transact
from orchestrator.progress import restartable
from orchestrator.providers import tables
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.harbor import Task
from sandboxes.base import Limits, Provider, SandboxFull
from sandboxes.owner import working_as

log = get(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How to start a worker. `journal` is a directory of its own; `owner` names the process in leases and stays the same over restarts."""

    run: str
    database_url: str
    nats_url: str
    journal: Path
    provider: str
    slots: int
    owner: str


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's context. `heart` keeps its leases, `courier` its results; both run while the context is open. `orders`: whether it may take
    new work."""

    run_id: int
    run: str
    owner: str
    slots: int
    config: Config
    engine: AsyncEngine
    bus: Bus
    courier: Courier
    heart: Heart
    provider: Provider
    orders: Orders


@asynccontextmanager
async def open_worker(settings: WorkerSettings, name: str) -> AsyncIterator[Worker]:
    """Connect and recover. Raises ServiceError, ConfigurationError or BusError, one sentence each, when something is missing."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            open_engine(
                settings.database_url, Role.RUNNER, size=4, name=name, patience_s=clock().pool_start_s
            )
        )
        async with engine.connect() as connection:
            await check_revision(connection)
            run = await get_run(connection, settings.run)
        config = Config.from_json(run.config)
        provider: Provider = plugins.provider(settings.provider, tables(config.sandbox))
        problems = await while_full(provider.problems)  # also removes what dead owners left
        if problems:
            raise ServiceError(
                f"the sandbox provider {settings.provider} cannot be used: {' '.join(problems)}"
            )
        stack.enter_context(bind(run=run.name))
        stack.enter_context(working_as(settings.owner))
        journal = await stack.enter_async_context(Journal.open(settings.journal))
        measured(WorkerMetrics).journal.set_function(lambda: journal.held_bytes)
        if pending := len(journal.pending()):
            log.info("journal.resent", entries=pending)
        heart = Heart(engine, settings.owner, config.rollout.lease_ttl_s, journal)
        stack.push_async_callback(heart.give_back)
        # Before the bus, which may be away for long: what the journal carries is finished, and nobody shall do it again meanwhile.
        await stack.enter_async_context(beside(partial(restartable, "heart", heart.run)))
        bus = await stack.enter_async_context(NatsBus.connect(settings.nats_url, name=name))

        async def confirm(entries: Sequence[Entry]) -> Collection[int]:
            keys = {MessageKey.parse(entry.message.msg_id): entry.n for entry in entries}

            async def ask(connection: AsyncConnection) -> set[MessageKey]:
                return await settled(connection, run.run_id, list(keys))

            return [keys[key] for key in await transact(engine, ask, at="worker.read")]

        courier = Courier(journal, bus, confirm, failed_instead)
        await bus.ensure_streams()
        await stack.enter_async_context(beside(courier.run))
        orders = Orders()

        async def unsent(connection: AsyncConnection) -> int:
            return len(journal.pending())

        orders.own = unsent
        await stack.enter_async_context(announced(engine, run.run_id, orders))
        tidying = partial(tidy, config.rollout.lease_ttl_s, provider)
        await stack.enter_async_context(beside(partial(restartable, "tidy", tidying)))
        yield Worker(
            run.run_id, run.name, settings.owner, settings.slots, config, engine, bus, courier, heart, provider, orders
        )  # fmt: skip


async def while_full(look: Callable[[], Awaitable[T]]) -> T:
    """What `look` returns, as soon as the disk of the sandboxes is not full any more; meanwhile an alarm at every look."""
    while True:
        try:
            return await look()
        except SandboxFull as error:
            log.error("sandbox.full", error=str(error), wait_s=clock().sandbox_retry_s)
            await anyio.sleep(clock().sandbox_retry_s)


def environment_of(task: Task, worker: Worker) -> Environment:
    """Where a task's programs run under this worker's provider. ValueError, one sentence, if they cannot."""
    bases = worker.config.sandbox.base_images
    return task.environment(bases, containers=worker.provider.containers)


def sandbox_limits(section: SandboxSection, wall_s: float, needs: Needs | None = None) -> Limits:
    """The configured limits of one sandbox, `wall_s` for each of its programs; more where a scaffold's own program needs more."""
    least = needs or Needs()
    return Limits(
        memory_mb=max(section.memory_mb, least.memory_mb),
        processes=max(section.processes, least.processes),
        cpu_s=float(max(section.cpu_s, least.cpu_s)),
        disk_mb=max(section.disk_mb, least.disk_mb),
        wall_s=wall_s,
    )
