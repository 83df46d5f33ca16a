"""`penstock up`: the processes of one run on one machine, supervised.

Services that the configuration names are used; the others are started here. Each process is the same command that a cluster runs
(`penstock gateway`, …) and receives its services by environment.
"""

import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import asyncpg
from sqlalchemy.exc import DBAPIError

from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.embedded.nats_server import prepare_nats
from orchestrator.deploy.embedded.ports import free_port
from orchestrator.deploy.embedded.postgres_cluster import discard_sockets, prepare_cluster
from orchestrator.deploy.embedded.process_spec import (
    ProcessEvent,
    ProcessSpec,
    RestartPolicy,
    RestartWhen,
)
from orchestrator.deploy.embedded.service_sources import (
    Source,
    Used,
    check_embedded_owner,
    used,
)
from orchestrator.deploy.embedded.service_specs import nats_spec, postgres_spec
from orchestrator.deploy.embedded.supervisor import Supervisor
from orchestrator.deploy.held_ports import HeldPorts, check_not_taken
from orchestrator.deploy.home import Home
from orchestrator.deploy.preflight import (
    check_config,
    check_disk,
    check_model,
    check_port,
    check_sandbox,
    check_scaffolds,
)
from orchestrator.gateway.servers.client.own_server import OwnServerConnector
from orchestrator.pool.engine import MIGRATIONS, REVISION, check_revision, open_engine, revision_of
from orchestrator.pool.runs import ensure_run
from orchestrator.pool.transact import passing, transact
from orchestrator.runtime.plugins import names
from orchestrator.runtime.secret_file import shared_secret, write_private
from orchestrator.settings.config import (
    Config,
    effective,
    ignored,
    load,
)
from orchestrator.settings.providers import tables
from sandboxes.owned import owned_directory

NATS_PATIENCE_S = 5.0
# Loading a large model takes minutes, and SGLang takes 7 s to end.
COMMAND_START_S, SERVER_STOP_S = (600.0, 20.0)
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
Route = Callable[[str, str, str], str]
"""(process, service, real address) → the address that the process receives: for a proxy in between. Services: postgres, nats,
gateway, gateway-socket, rollout-server."""


def direct(process: str, what: str, address: str) -> str:
    """The route without a proxy."""
    return address


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
    _check(config, only)
    if ProcessRole.ROLLOUT_SERVER in only and not config.servers.urls and not config.policy.model:
        raise ConfigurationError(f"{home.file}: policy.model names no directory: set it, or servers.urls")
    # Rollout servers start before the data pool can be read. They use the policy that the last start found in it.
    model = _model_of_the_run(home, config) or config.policy.model
    if model:
        check_model(Path(model), routing_replay=config.trainer.routing_replay)
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
        check_disk(home.layout.root)
        if ProcessRole.GATEWAY in only:
            check_port(config.gateway.host, config.gateway.port)
        if ProcessRole.WEB in only:
            check_port(config.web.host, config.web.port, "web")
        if ProcessRole.RUNNER in only or ProcessRole.VERIFIER in only:
            await check_sandbox(config.sandbox.provider, tables(config.sandbox))
        ports = HeldPorts(config, outer_stack)
        own_servers = (
            _rollout_servers(home, config, model, ports) if ProcessRole.ROLLOUT_SERVER in only else []
        )
        embedded = _embedded(services)
        if embedded:  # they load while the services are created; configured services are checked first
            supervisor.add(*_kept(config, [spec for spec, _ in own_servers]))
        if ProcessRole.POSTGRES in embedded:
            outer_stack.callback(discard_sockets, home.layout.postgres)
        supervisor.add(*_kept(config, await anyio.to_thread.run_sync(_services, home, embedded)))
        if embedded:
            await supervisor.ready(*embedded)
        config = home.connected()
        await migrate(config, own=ProcessRole.POSTGRES in embedded)
        changed, config = await create_run(config)
        if changed and on_ignored_keys is not None:
            on_ignored_keys(changed)
        if changed:  # the run's own values were not checked yet
            _check(config, only)
        if on_config is not None:
            on_config(config)
        _remember_model(home, config)
        if own_servers and config.policy.model != model:
            raise ConfigurationError(
                f"run {quoted(config.run.name)} began with policy.model = {quoted(config.policy.model)}, "
                f"and its rollout servers were started with {quoted(model)}: start again"
            )
        await check_bus(config)
        if not embedded:
            supervisor.add(*_kept(config, [spec for spec, _ in own_servers]))
        urls = (*config.servers.urls, *(url for _, url in own_servers))
        if not config.servers.command:  # ours; other servers have /metrics only if their options enable it
            for spec, url in own_servers:
                home.target(spec.name, config).tell(url.removeprefix("http://"))
        ports = HeldPorts(config, outer_stack)  # of the configuration in force
        supervisor.add(*_kept(config, _processes(home, config, only, embedded, urls, route, ports)))
        await supervisor.ready()
        if on_started is not None:
            on_started(config)
        await supervisor.until_stopped([spec.name for spec, _ in own_servers], expendable=EXPENDABLE)
    for name in (*only, *(spec.name for spec, _ in own_servers)):  # of killed processes
        home.target(name, config).file.unlink(missing_ok=True)


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
                except (OSError, DBAPIError, asyncpg.PostgresError) as error:
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
    async with open_engine(config.services.database_url, size=1) as engine:
        run = await transact(
            engine,
            lambda connection: ensure_run(connection, config.run.name, config.to_json()),
            at="run.create",
        )
    return ignored(run.config, config), effective(run.config, config)


def _check(config: Config, only: Sequence[str]) -> None:
    """ConfigurationError for values with which no process to be started could work."""
    check_config(config, names("scaffolds"))
    if ProcessRole.TRAINER in only and config.sampling.untrainable:
        raise ConfigurationError(config.sampling.untrainable)
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


def _rollout_servers(
    home: Home, config: Config, model: str, ports: HeldPorts
) -> list[tuple[ProcessSpec, str]]:
    """Our own rollout servers, with their URLs; none if the configuration names others."""
    if config.servers.urls:
        return []
    key = () if (file := home.server_key) is None else ("--key-file", str(file))
    secret = None if file is None else shared_secret(file)  # made before any process reads it
    if (
        secret is not None and config.servers.command
    ):  # SGLang takes options from a file, and so others cannot read them
        write_private(
            home.server_key_config, f"api-key: {json.dumps(secret)}\nadmin-api-key: {json.dumps(secret)}\n"
        )
    found = []
    for index in range(config.servers.embedded):
        name = "rollout-server" if index == 0 else f"rollout-server-{index + 1}"
        sockets = () if config.servers.command else ports.rollout_server(name)
        port = sockets[0].port if sockets else free_port()
        url = f"http://127.0.0.1:{port}"
        seed = config.run.seed + index
        argv = config.servers.starts(
            model, port, seed, key_file=file or Path(), key_config=home.server_key_config
        ) or (
            sys.executable, "-m", "trainer.serving", "--model-path", model, "--host", "127.0.0.1",
            "--port", str(port), "--max-running-requests", str(config.servers.max_running),
            "--max-total-tokens", str(config.servers.max_total_tokens), "--seed", str(seed), *key,
        )  # fmt: skip
        answers = _answers(f"{url}/model_info", secret)  # even while it is paused
        spec = ProcessSpec(
            name=name,
            argv=argv,
            env={"OMP_NUM_THREADS": "1", **({} if config.servers.command else _compiled(home))},
            sockets=sockets,
            before_start=None if sockets else partial(check_not_taken, port),
            ready=answers,
            answers=answers,
            hang_s=config.servers.hang_s,
            ready_timeout_s=COMMAND_START_S if config.servers.command else 60.0,
            grace_s=SERVER_STOP_S,
        )
        found.append((spec, url))
    return found


def _compiled(home: Home) -> dict[str, str]:
    """Where torch keeps compiled code: by default in the temporary directory, under a name that another user of the machine can take first."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get(
            "TORCHINDUCTOR_CACHE_DIR", str(home.layout.run / "compiled")
        )
    }


def _processes(
    home: Home,
    config: Config,
    only: Sequence[str],
    services: tuple[str, ...],
    urls: Sequence[str],
    route: Route,
    ports: HeldPorts,
) -> Iterator[ProcessSpec]:
    """`services` are our own: all others start after them and end before them."""
    options = ("--config", str(home.file), *(part for item in home.overrides for part in ("--set", item)))
    penstock = (sys.executable, "-m", "orchestrator.cli")

    def env(process: str) -> dict[str, str]:
        return {
            "DATABASE_URL": route(process, "postgres", config.services.database_url),
            "NATS_URL": route(process, "nats", config.services.nats_url),
            "OMP_NUM_THREADS": "1",
            **_compiled(home),
        }

    def dependencies(*before: str) -> tuple[str, ...]:
        return (*services, *(name for name in before if name in only))

    if ProcessRole.ORCHESTRATOR in only:
        orchestrator = (*penstock, "orchestrator", *options)
        yield ProcessSpec(
            name="orchestrator",
            argv=orchestrator,
            env=env("orchestrator"),
            sockets=ports.metrics("orchestrator"),
            after=dependencies(),
        )
    port = config.gateway.port or free_port()  # the same across restarts: runners keep its address
    if ProcessRole.GATEWAY in only:
        sockets = ports.gateway()
        port = sockets[0].port
        routed = [route("gateway", "rollout-server", url) for url in urls]
        servers = tuple(part for url in routed for part in ("--server", url))
        # `penstock up` holds the ports of embedded servers. Those of a command are free while it is dead.
        own = ("--own-servers",) if config.servers.command and not config.servers.urls else ()
        yield ProcessSpec(
            name="gateway",
            argv=(*penstock, "gateway", *options, *servers, *own, "--port", str(port)),
            env=env("gateway"),
            sockets=sockets,
            after=dependencies("orchestrator"),
            before_start=lambda: home.gateway_url_file.unlink(missing_ok=True),
            ready=_exists(home.gateway_url_file),
        )
    if ProcessRole.RUNNER in only:
        url = route("runner", "gateway", f"http://{config.gateway.host}:{port}")
        socket = route("runner", "gateway-socket", str(home.gateway_socket))
        yield ProcessSpec(
            name="runner",
            argv=(*penstock, "runner", *options, "--gateway", url, "--gateway-socket", socket),
            env=env("runner"),
            sockets=ports.metrics("runner"),
            after=dependencies("orchestrator"),
            # It closes the sessions of its attempts.
            ends_before=("gateway",) if ProcessRole.GATEWAY in only else (),
        )
    if ProcessRole.VERIFIER in only:
        yield ProcessSpec(
            name="verifier",
            argv=(*penstock, "verifier", *options),
            env=env("verifier"),
            sockets=ports.metrics("verifier"),
            after=dependencies("gateway"),
        )
    if ProcessRole.TRAINER in only:
        yield ProcessSpec(
            name="trainer",
            argv=(*penstock, "trainer", *options),
            env=env("trainer"),
            sockets=ports.metrics("trainer"),
            # Like the verifier, it is not needed before rollouts run, and it takes seconds to load.
            after=dependencies("gateway"),
            restart=RestartPolicy(when=RestartWhen.ON_FAILURE),
        )
    if ProcessRole.WEB in only:
        yield ProcessSpec(
            name="web",
            argv=(*penstock, "web", *options),
            env=env("web"),
            sockets=ports.web(home.web_url_file),
            after=dependencies(),
            ready=_dashboard(home.web_url_file),
        )


def _answers(url: str, key: str | None = None) -> Callable[[], Awaitable[bool]]:
    """Whether a server answers; one that is sent a key must be this user's."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    limit = aiohttp.ClientTimeout(total=2)

    async def ready() -> bool:
        connector = None if key is None else OwnServerConnector(os.geteuid())
        try:
            async with (
                aiohttp.ClientSession(timeout=limit, headers=headers, connector=connector) as session,
                session.get(url) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    return ready


def _dashboard(url_file: Path) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        try:
            address = url_file.read_text().partition("/?")[0]
        except OSError:
            return False
        return await _answers(f"{address}/healthz")()

    return ready


def _exists(file: Path) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        return file.exists()

    return ready
