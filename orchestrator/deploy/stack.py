"""`penstock up`: the processes of one run on one machine, supervised.

Services that the configuration names are used; the others are started here. Each process is the same command that a cluster runs
(`penstock gateway`, …) and receives its services by environment.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.embedded.nats_server import prepare_nats
from orchestrator.deploy.embedded.postgres_cluster import discard_sockets, prepare_cluster
from orchestrator.deploy.embedded.process_spec import (
    ProcessEvent,
    ProcessSpec,
    RestartPolicy,
)
from orchestrator.deploy.embedded.service_sources import (
    Source,
    Used,
    check_embedded_owner,
    used,
)
from orchestrator.deploy.embedded.service_specs import nats_spec, postgres_spec
from orchestrator.deploy.embedded.supervisor import Supervisor
from orchestrator.deploy.held_ports import HeldPorts
from orchestrator.deploy.home import Home
from orchestrator.deploy.preflight import (
    check_config,
    check_disk,
    check_model,
    check_port,
    check_sandbox,
    check_scaffolds,
)
from orchestrator.deploy.stack_processes import Route, StackProcesses, direct, rollout_servers
from orchestrator.pool.engine import MIGRATIONS, REVISION, check_revision, open_engine, revision_of
from orchestrator.pool.opened import opened
from orchestrator.pool.runs import ensure_run
from orchestrator.pool.transact import DRIVER_ERRORS, passing, transact
from orchestrator.runtime.plugins import names
from orchestrator.settings.config import (
    Config,
    effective,
    ignored,
    load,
)
from orchestrator.settings.providers import tables
from sandboxes.owned import owned_directory

NATS_PATIENCE_S = 5.0
PROCESSES = (
    ProcessRole.ROLLOUT_SERVER,
    ProcessRole.ORCHESTRATOR,
    ProcessRole.GATEWAY,
    ProcessRole.RUNNER,
    ProcessRole.VERIFIER,
    ProcessRole.TRAINER,
    ProcessRole.WEB,
)
EXPENDABLE = (ProcessRole.WEB,)  # it only shows the others' work: its loss ends nothing


async def up(
    home: Home,
    *,
    only: Sequence[str] = PROCESSES,
    on_event: Callable[[ProcessEvent], None] | None = None,
    on_config: Callable[[Config], None] | None = None,
    on_started: Callable[[Config], None] | None = None,
    on_ignored_keys: Callable[[list[str]], None] | None = None,
    on_services: Callable[[tuple[Used, Used]], None] | None = None,
    route: Route = direct,
) -> None:
    """Start everything, keep it alive until SIGINT, SIGTERM or cancellation. Raises ConfigurationError or ServiceError, one sentence, and
    ValueError when a process fails that has no replacement: the others could not continue, and a person must be informed.

    `on_services` receives the services of the run, once the first checks have passed. `on_ignored_keys` receives the keys with a new value
    that an existing run ignores: it keeps its original values. `on_config` then receives the configuration in force, and `on_started` once all
    processes are started. `route` changes addresses.
    """
    config = home.config()
    model = _checked_model(home, config, only)
    services = services_of(home)
    await check_embedded_owner(services)
    # Resources that outlast the processes are released after them.
    async with (
        AsyncExitStack() as outer_stack,
        Supervisor(home.layout, on_event=on_event, obey_signals=True) as supervisor,
    ):
        if on_services is not None:
            on_services(services)
        if ProcessRole.GATEWAY in only:
            outer_stack.enter_context(owned_directory(home.gateway_socket.parent))
        await _check_machine(home, config, only)
        own_servers = []
        if ProcessRole.ROLLOUT_SERVER in only:
            own_servers = rollout_servers(home, config, model, HeldPorts(config, outer_stack))
        embedded = _embedded(services)
        if embedded:  # they load while the services are created; configured services are checked first
            supervisor.add(*_kept(config, [spec for spec, _ in own_servers]))
        if ProcessRole.POSTGRES in embedded:
            outer_stack.callback(discard_sockets, home.layout.postgres)
        supervisor.add(*_kept(config, await anyio.to_thread.run_sync(_services, home, embedded)))
        if embedded:
            await supervisor.ready(*embedded)
        config = await _run_of(home, only, on_ignored_keys, own=ProcessRole.POSTGRES in embedded)
        if on_config is not None:
            on_config(config)
        _remember_model(home, config)
        if own_servers:
            _check_same_model(config, model)
        await check_bus(config)
        if not embedded:
            supervisor.add(*_kept(config, [spec for spec, _ in own_servers]))
        urls = (*config.servers.urls, *(url for _, url in own_servers))
        if not config.servers.command:  # ours; other servers have /metrics only if their options enable it
            for spec, url in own_servers:
                home.target(spec.name, config).tell(url.removeprefix("http://"))
        processes = StackProcesses(
            home=home,
            config=config,
            only=only,
            services=embedded,
            route=route,
            ports=HeldPorts(config, outer_stack),  # of the configuration in force
        )
        supervisor.add(*_kept(config, processes.all(urls)))
        await supervisor.ready()
        if on_started is not None:
            on_started(config)
        await supervisor.until_stopped([spec.name for spec, _ in own_servers], expendable=EXPENDABLE)
    for name in (*only, *(spec.name for spec, _ in own_servers)):  # of killed processes
        home.target(name, config).file.unlink(missing_ok=True)


def _checked_model(home: Home, config: Config, only: Sequence[str]) -> str:
    """The first policy's directory, checked with the configuration; empty if there is none to serve. Rollout servers start before the data pool
    can be read: they use the policy that the last start found in it. Raises ConfigurationError."""
    _check(config, only)
    if ProcessRole.ROLLOUT_SERVER in only and not config.servers.urls and not config.policy.model:
        raise ConfigurationError(f"{home.file}: policy.model names no directory: set it, or servers.urls")
    model = _model_of_the_run(home, config) or config.policy.model
    if model:
        check_model(Path(model), config.trainer if ProcessRole.TRAINER in only else None)
    return model


async def _check_machine(home: Home, config: Config, only: Sequence[str]) -> None:
    """Raise ConfigurationError or ServiceError if this machine lacks room, a port or the sandboxes that the processes need."""
    check_disk(home.layout.root)
    if ProcessRole.GATEWAY in only:
        check_port(config.gateway.host, config.gateway.port)
    if ProcessRole.WEB in only:
        check_port(config.web.host, config.web.port, "web")
    if ProcessRole.RUNNER in only or ProcessRole.VERIFIER in only:
        await check_sandbox(config.sandbox.provider, tables(config.sandbox))


async def _run_of(
    home: Home, only: Sequence[str], on_ignored_keys: Callable[[list[str]], None] | None, *, own: bool
) -> Config:
    """Create the run in the data pool, or find it there. Returns the configuration in force. `own`: the database is ours to upgrade."""
    config = home.connected()
    await migrate(config, own=own)
    changed, config = await create_run(config)
    if changed:
        if on_ignored_keys is not None:
            on_ignored_keys(changed)
        _check(config, only)  # the run's own values were not checked yet
    return config


def _check_same_model(config: Config, model: str) -> None:
    """Raise ConfigurationError if the rollout servers were started with another policy than the run's."""
    if config.policy.model != model:
        raise ConfigurationError(
            f"run {quoted(config.run.name)} began with policy.model = {quoted(config.policy.model)}, "
            f"and its rollout servers were started with {quoted(model)}: start again"
        )


def _kept(config: Config, specs: Iterable[ProcessSpec]) -> Iterator[ProcessSpec]:
    """With the configured restart policy."""
    section = config.processes
    patience = RestartPolicy(
        limit=section.restart_limit,
        window_s=section.restart_window_s,
        first_delay_s=section.restart_first_s,
        max_delay_s=section.restart_longest_s,
    )
    for spec in specs:
        yield replace(spec, restart=replace(patience, when=spec.restart.when))


def services_of(home: Home) -> tuple[Used, Used]:
    """The services of a run, and the source that names each."""
    configured = load(home.file, home.overrides).services  # including the environment's
    return used(home.layout, configured.database_url, configured.nats_url)


def _embedded(services: Iterable[Used]) -> tuple[str, ...]:
    """The services that no source names. They are started here."""
    names = {"PostgreSQL": "postgres", "NATS": "nats"}
    return tuple(names[service.service] for service in services if service.source is Source.EMBEDDED)


def _services(home: Home, embedded: Sequence[str]) -> list[ProcessSpec]:
    specs = []
    try:
        if ProcessRole.POSTGRES in embedded:
            specs.append(postgres_spec(prepare_cluster(home.layout.postgres)))
        if ProcessRole.NATS in embedded:
            specs.append(nats_spec(prepare_nats(home.layout.nats)))
    except OSError as error:
        raise ServiceError(
            f"the services cannot be prepared in {home.layout.root}: {error}; make room there, then start again"
        ) from error
    return specs


async def migrate(config: Config, *, own: bool) -> None:
    """Upgrade our own database to this code's revision. A configured one must have it already. A newer one is not changed."""
    async with open_engine(config.services.database_url, size=1) as engine:
        if own:
            async with engine.connect() as connection:
                newer = (await revision_of(connection) or "") > REVISION
            if not newer:
                try:
                    await anyio.to_thread.run_sync(upgrade, config.services.database_url)
                except DRIVER_ERRORS as error:
                    if not passing(error):
                        raise
                    raise ServiceError(
                        "PostgreSQL was lost while the database was brought to this code's schema; start again: the change is complete or undone"
                    ) from error
        async with engine.connect() as connection:
            await check_revision(connection)


async def create_run(config: Config) -> tuple[list[str], Config]:
    """Create the run or find it, so that every process finds it in any order of their starts. Returns the keys whose new value the run
    ignores, and the configuration in force."""
    async with opened(config.services.database_url, name="penstock-up") as engine:
        run = await transact(
            engine,
            lambda connection: ensure_run(connection, config.run.name, config.to_json()),
            at="run.create",
        )
    return ignored(run.config, config), effective(run.config, config)


def _check(config: Config, only: Sequence[str]) -> None:
    """ConfigurationError for values with which no process to be started could work."""
    check_config(config, names("scaffolds"))
    if ProcessRole.TRAINER in only and (fault := config.sampling.untrainable or config.trainer.untrainable):
        raise ConfigurationError(fault)
    if ProcessRole.RUNNER in only:
        check_scaffolds(config)


def _model_of_the_run(home: Home, config: Config) -> str:
    """The first policy that the run keeps, as an earlier start here found it; empty: unknown."""
    try:
        run, _, model = home.run_model_file.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return ""
    return model if run == config.run.name else ""


def _remember_model(home: Home, config: Config) -> None:
    with contextlib.suppress(OSError):  # a full disk: the next start uses the file's policy
        home.run_model_file.write_text(f"{config.run.name}\n{config.policy.model}", encoding="utf-8")


async def check_bus(config: Config) -> None:
    """Raise BusError, one sentence, if NATS cannot be reached or is unfit: before processes die of it one by one."""
    async with NatsBus.connect(config.services.nats_url, name="penstock-up", patience_s=NATS_PATIENCE_S):
        pass


def upgrade(url: str) -> None:
    """`alembic upgrade head`."""
    from alembic import command
    from alembic.config import Config as AlembicConfig

    alembic = AlembicConfig()
    alembic.set_main_option("script_location", str(MIGRATIONS))
    alembic.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.upgrade(alembic, "head")
