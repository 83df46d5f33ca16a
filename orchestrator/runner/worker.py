"""The shared parts of a runner and a verifier runner: settings, connections, and the journal that carries their results.

A worker owns no state that a restart would lose. When it is stopped, it returns its leases. After kill -9, the next start or another worker on
this machine removes the dead process's sandboxes, the journal's results are sent again, and the leases expire by their time to live.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from scaffolds.base import Needs
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.blobs.task_files import TaskFiles
from orchestrator.bus.base import Bus
from orchestrator.bus.courier import Courier
from orchestrator.bus.feed import in_background
from orchestrator.bus.journal import Journal
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ServiceError
from orchestrator.pool.drain_requests import DrainRequests
from orchestrator.pool.engine import Role
from orchestrator.pool.heartbeats import send_heartbeats
from orchestrator.pool.opened import opened
from orchestrator.pool.runs import get_run
from orchestrator.pool.settled import settled_messages
from orchestrator.runner.cleanup import remove_leftovers
from orchestrator.runner.heartbeat import Heart
from orchestrator.runner.metrics import WorkerMetrics
from orchestrator.runner.oversize import failed_instead
from orchestrator.runtime import plugins
from orchestrator.runtime.descriptors import raise_descriptor_limit
from orchestrator.runtime.liveness import restartable
from orchestrator.runtime.log import bind, get
from orchestrator.runtime.metrics import measured
from orchestrator.settings.config import Config, effective, ignored
from orchestrator.settings.providers import tables
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.settings.timeouts import timeouts
from orchestrator.tasks.environment import Environment, builds_where_needed, check_services, reaches_the_proxy
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.network import refusals
from sandboxes.base import Limits, Provider, SandboxFull
from sandboxes.owner import working_as

log = get(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How to start a worker. `journal` is a separate directory; `owner` names the process in leases and stays the same over restarts."""

    run: str
    database_url: str
    nats_url: str
    journal: Path
    provider: str
    slots: int
    owner: str
    config: Config | None = None
    """The file's configuration, for machine keys; None: the run's configuration at its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker's context. `heart` renews its leases, `courier` sends its results; both run while the context is open. `orders`: whether it may take
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
    files: TaskFiles
    orders: DrainRequests


@asynccontextmanager
async def open_worker(settings: WorkerSettings, name: str) -> AsyncIterator[Worker]:
    """Connect and recover. Raises ServiceError, ConfigurationError or BusError, one sentence each, when something is missing."""
    raise_descriptor_limit()
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            opened(settings.database_url, Role.RUNNER, size=4, name=name, patience_s=timeouts().pool_start_s)
        )
        async with engine.connect() as connection:
            run = await get_run(connection, settings.run)
        own_config = settings.config or Config.from_json(run.config)
        if changed := ignored(run.config, own_config):
            log.warning("run.configuration_kept", changed=changed, advice="a run keeps what it began with")
        config = effective(run.config, own_config)
        provider = await _usable_provider(settings.provider, config)
        stack.enter_context(bind(run=run.name))
        stack.enter_context(working_as(settings.owner))
        journal = await stack.enter_async_context(Journal.open(settings.journal))
        measured(WorkerMetrics).journal.set_function(lambda: journal.held_bytes)
        if pending := len(journal.pending()):
            log.info("journal.resent", entries=pending)
        heart = Heart(
            engine, settings.owner, run_id=run.run_id, ttl_s=config.rollout.lease_ttl_s, journal=journal
        )
        stack.push_async_callback(heart.give_back)
        # Before the bus, which may be away for long: the journal's work is finished and must not be repeated in between.
        await stack.enter_async_context(in_background(partial(restartable, "heartbeat", heart.run)))
        bus = await stack.enter_async_context(NatsBus.connect(settings.nats_url, name=name))
        confirm = partial(settled_messages, engine, run.run_id, at="worker.read")
        courier = Courier(journal, bus, confirm=confirm, unsendable=failed_instead)
        await bus.ensure_streams()
        await stack.enter_async_context(in_background(courier.run))
        orders = DrainRequests()

        async def unsent(connection: AsyncConnection) -> int:
            return len(journal.pending())

        orders.own = unsent
        await stack.enter_async_context(send_heartbeats(engine, run.run_id, orders))
        cleaning = partial(remove_leftovers, config.rollout.lease_ttl_s, provider)
        await stack.enter_async_context(in_background(partial(restartable, "cleanup", cleaning)))
        yield Worker(
            run_id=run.run_id,
            run=run.name,
            owner=settings.owner,
            slots=settings.slots,
            config=config,
            engine=engine,
            bus=bus,
            courier=courier,
            heart=heart,
            provider=provider,
            files=TaskFiles.of(engine, config.tasks),
            orders=orders,
        )


async def _usable_provider(name: str, config: Config) -> Provider:
    """The sandbox provider, without what dead owners left. Raises ServiceError if it cannot be used."""
    provider: Provider = plugins.provider(name, tables(config.sandbox))
    problems = await while_full(provider.problems)  # also removes leftovers of dead owners
    if problems:
        raise ServiceError(f"the sandbox provider {name} cannot be used: {' '.join(problems)}")
    return provider


async def while_full(look: Callable[[], Awaitable[T]]) -> T:
    """The result of `look`, once the sandboxes' disk has room; until then every look logs an error."""
    while True:
        try:
            return await look()
        except SandboxFull as error:
            log.error("sandbox.full", error=str(error), wait_s=timeouts().sandbox_retry_s)
            await anyio.sleep(timeouts().sandbox_retry_s)


def environment_of(task: Task, worker: Worker) -> Environment:
    """The environment of a task's programs under this worker's provider. ValueError, one sentence, if they cannot run."""
    return _usable(task, worker, task.environment)


def verification_of(task: Task, worker: Worker) -> Environment:
    """The environment of a task's tests under this worker's provider. ValueError, one sentence, if they cannot run."""
    return _usable(task, worker, task.verification)


def _usable(task: Task, worker: Worker, of: Callable[..., Environment]) -> Environment:
    _check_network(task, worker)
    found = of(
        worker.config.sandbox.base_images,
        containers=worker.provider.containers,
        where_needed=builds_where_needed(worker.provider),
    )
    check_services(found, worker.provider)
    return found


def _check_network(task: Task, worker: Worker) -> None:
    proxied = reaches_the_proxy(worker.provider)
    for problem in refusals(task.settings, worker.config.sandbox, proxied=proxied):
        raise ValueError(problem)


def sandbox_limits(section: SandboxSection, wall_s: float, needs: Needs | None = None) -> Limits:
    """The configured limits of one sandbox, `wall_s` for each of its programs; higher if a scaffold's own program needs more."""
    minimum = needs or Needs()
    return Limits(
        memory_mb=max(section.memory_mb, minimum.memory_mb),
        processes=max(section.processes, minimum.processes),
        cpu_s=float(max(section.cpu_s, minimum.cpu_s)),
        disk_mb=max(section.disk_mb, minimum.disk_mb),
        wall_s=wall_s,
    )
