"""`penstock up`: the processes of one run on one machine, supervised.

Services that the configuration names are used; the others are started here. Each process is the same command that a cluster runs
(`penstock gateway`, …), given its services by environment.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import asyncpg
from sqlalchemy.exc import DBAPIError

from orchestrator.bus.nats import NatsBus
from orchestrator.config import Config, differences, load
from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.embedded.nats_server import prepare_nats
from orchestrator.embedded.ports import free_port
from orchestrator.embedded.postgres_cluster import discard_sockets, prepare_cluster
from orchestrator.embedded.process_spec import ProcessEvent, ProcessSpec, RestartPolicy, RestartWhen
from orchestrator.embedded.service_specs import nats_spec, postgres_spec
from orchestrator.embedded.supervisor import Supervisor
from orchestrator.home import Home
from orchestrator.plugins import names
from orchestrator.pool.engine import MIGRATIONS, REVISION, check_revision, open_engine, revision_of
from orchestrator.pool.runs import ensure_run
from orchestrator.pool.transact import passing, transact
from orchestrator.preflight import (
    check_config,
    check_disk,
    check_model,
    check_port,
    check_sandbox,
    check_scaffolds,
)
from orchestrator.providers import tables
from sandboxes.owned import owned_directory

NATS_PATIENCE_S = 5.0
COMMAND_START_S, SERVER_STOP_S = (
    600.0,
    20.0,
)  # a large model is loaded for minutes, and SGLang takes 7 s to end
# Processes take these from the file at each start; the run keeps all others.
OF_THE_MACHINE = (
    "policy.directory",
    "gateway.",
    "servers.",
    "processes.",
    "rollout.slots",
    "rollout.verify_slots",
    "sandbox.provider",
    "trainer.ranks",
    "trainer.pack_",  # memory and time of a pass, not what is learned
    "clock.",
    "watchdog.",
    "web.",
    "metrics.",
)
PROCESSES = ("rollout-server", "orchestrator", "gateway", "runner", "verifier", "trainer", "web")
EXPENDABLE = ("web",)  # shows what the others do: its loss ends nothing
Route = Callable[[str, str, str], str]
"""(process, what it reaches, where that is) → where the process is told that it is: for whoever stands in between. What: postgres, nats,
gateway, gateway-socket, rollout-server."""


def direct(process: str, what: str, address: str) -> str:
    """Nobody stands in between."""
    return address


async def up(
    home: Home,
    *,
    only: Sequence[str] = PROCESSES,
    on_event: Callable[[ProcessEvent], None] | None = None,
    started: Callable[[Config], None] | None = None,
    kept: Callable[[list[str]], None] | None = None,
    route: Route = direct,
) -> None:
    """Start everything, keep it alive until SIGINT, SIGTERM or cancellation. Raises ConfigurationError or ServiceError, one sentence, and
    ValueError when a process is given up that nothing stands in for: what is left could not go on, and somebody has to know.

    `kept` is told which keys have a new value that an existing run ignores: it keeps what it began with. `route` changes addresses.
    """
    config = home.config()
    check_config(config, names("scaffolds"))
    if "trainer" in only and config.sampling.untrainable:
        raise ConfigurationError(config.sampling.untrainable)
    if "runner" in only:
        check_scaffolds(config)
    if "rollout-server" in only and not config.servers.urls and not config.policy.model:
        raise ConfigurationError(f"{home.file}: policy.model names no directory: set it, or servers.urls")
    if config.policy.model:
        check_model(Path(config.policy.model), routing_replay=config.trainer.routing_replay)
    # What outlasts the processes goes after them.
    async with (
        AsyncExitStack() as outlasting,
        Supervisor(home.layout, on_event=on_event, obey_signals=True) as supervisor,
    ):
        if "gateway" in only:
            outlasting.enter_context(owned_directory(home.gateway_socket.parent))
        check_disk(home.layout.root)
        if "gateway" in only:
            check_port(config.gateway.host, config.gateway.port)
        if "web" in only:
            check_port(config.web.host, config.web.port, "web")
        if "runner" in only or "verifier" in only:
            await check_sandbox(config.sandbox.provider, tables(config.sandbox))
        own_servers = _rollout_servers(config) if "rollout-server" in only else []
        embedded = _embedded(home)
        if embedded:  # they load while the services are made; what a person configured is looked at first
            supervisor.add(*_kept(config, [spec for spec, _ in own_servers]))
        if "postgres" in embedded:
            outlasting.callback(discard_sockets, home.layout.postgres)
        supervisor.add(*_kept(config, await anyio.to_thread.run_sync(_services, home, embedded)))
        if embedded:
            await supervisor.ready(*embedded)
        config = home.connected()
        await migrate(config, own="postgres" in embedded)
        ignored = await create_run(config)
        if ignored and kept is not None:
            kept(ignored)
        await check_bus(config)
        if not embedded:
            supervisor.add(*_kept(config, [spec for spec, _ in own_servers]))
        urls = (*config.servers.urls, *(url for _, url in own_servers))
        if not config.servers.command:  # ours; what others serve at /metrics, they do when they are told to
            for spec, url in own_servers:
                home.target(spec.name, config).tell(url.removeprefix("http://"))
        supervisor.add(*_kept(config, _processes(home, config, only, embedded, urls, route)))
        await supervisor.ready()
        if started is not None:
            started(config)
        await supervisor.until_stopped([spec.name for spec, _ in own_servers], expendable=EXPENDABLE)
    for name in (*only, *(spec.name for spec, _ in own_servers)):  # of those that were killed
        home.target(name, config).file.unlink(missing_ok=True)


def _kept(config: Config, specs: Iterable[ProcessSpec]) -> Iterator[ProcessSpec]:
    """With the patience that the configuration has for processes that die."""
    section = config.processes
    patience = RestartPolicy(
        limit=section.restart_limit,
        window_s=section.restart_window_s,
        first_delay_s=section.restart_first_s,
        max_delay_s=section.restart_longest_s,
    )
    for spec in specs:
        yield replace(spec, restart=replace(patience, when=spec.restart.when))


def _embedded(home: Home) -> tuple[str, ...]:
    """The services that nobody names: they are started here."""
    named = load(home.file, home.overrides).services
    postgres, nats = named.database_url, named.nats_url  # the environment's too
    return tuple(name for name, url in (("postgres", postgres), ("nats", nats)) if not url)


def _services(home: Home, embedded: Sequence[str]) -> list[ProcessSpec]:
    specs = []
    try:
        if "postgres" in embedded:
            specs.append(postgres_spec(prepare_cluster(home.layout.postgres)))
        if "nats" in embedded:
            specs.append(nats_spec(prepare_nats(home.layout.nats)))
    except OSError as error:
        raise ServiceError(
            f"the services cannot be prepared in {home.layout.root}: {error}; make room there, then start again"
        ) from error
    return specs


async def migrate(config: Config, *, own: bool) -> None:
    """Bring our own database to this code's revision; a configured one must be there already. One that is newer stays so."""
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
                        "PostgreSQL was lost while the database was brought to this code's schema; start again: it is as it was, or done"
                    ) from error
        async with engine.connect() as connection:
            await check_revision(connection)


async def create_run(config: Config) -> list[str]:
    """Every process finds the run that it belongs to, in whatever order they start. Returns the keys whose new value the run ignores."""
    async with open_engine(config.services.database_url, size=1) as engine:
        run = await transact(
            engine,
            lambda connection: ensure_run(connection, config.run.name, config.to_json()),
            at="run.create",
        )
    changed = differences(Config.from_json(run.config), config)
    return [key for key in changed if not key.startswith(OF_THE_MACHINE)]


async def check_bus(config: Config) -> None:
    """Raise BusError, one sentence, when NATS cannot be reached or is not fit: before processes die of it one by one."""
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


def _rollout_servers(config: Config) -> list[tuple[ProcessSpec, str]]:
    """Those of our own, with their URLs; none where the configuration names others."""
    if config.servers.urls:
        return []
    found = []
    for index in range(config.servers.embedded):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        seed = config.run.seed + index
        argv = config.servers.starts(config.policy.model, port, seed) or (
            sys.executable, "-m", "trainer.serving", "--model-path", config.policy.model, "--host", "127.0.0.1",
            "--port", str(port), "--max-running-requests", str(config.servers.max_running),
            "--max-total-tokens", str(config.servers.max_total_tokens), "--seed", str(seed),
        )  # fmt: skip
        spec = ProcessSpec(
            name="rollout-server" if index == 0 else f"rollout-server-{index + 1}",
            argv=argv,
            env={"OMP_NUM_THREADS": "1"},
            ready=_answers(f"{url}/model_info"),
            ready_timeout_s=COMMAND_START_S if config.servers.command else 60.0,
            grace_s=SERVER_STOP_S,
        )
        found.append((spec, url))
    return found


def _processes(
    home: Home,
    config: Config,
    only: Sequence[str],
    services: tuple[str, ...],
    urls: Sequence[str],
    route: Route,
) -> Iterator[ProcessSpec]:
    """`services` are those of our own: all others start after them and end before them."""
    options = ("--config", str(home.file), *(part for item in home.overrides for part in ("--set", item)))
    penstock = (sys.executable, "-m", "orchestrator.cli")

    def env(process: str) -> dict[str, str]:
        return {
            "DATABASE_URL": route(process, "postgres", config.services.database_url),
            "NATS_URL": route(process, "nats", config.services.nats_url),
            "OMP_NUM_THREADS": "1",
        }

    def after(*before: str) -> tuple[str, ...]:
        return (*services, *(name for name in before if name in only))

    if "orchestrator" in only:
        orchestrator = (*penstock, "orchestrator", *options)
        yield ProcessSpec(name="orchestrator", argv=orchestrator, env=env("orchestrator"), after=after())
    port = config.gateway.port or free_port()  # the same over restarts: runners keep its address
    if "gateway" in only:
        routed = [route("gateway", "rollout-server", url) for url in urls]
        servers = tuple(part for url in routed for part in ("--server", url))
        yield ProcessSpec(
            name="gateway",
            argv=(*penstock, "gateway", *options, *servers, "--port", str(port)),
            env=env("gateway"),
            after=after("orchestrator"),
            before_start=lambda: home.gateway_url_file.unlink(missing_ok=True),
            ready=_exists(home.gateway_url_file),
        )
    if "runner" in only:
        url = route("runner", "gateway", f"http://{config.gateway.host}:{port}")
        socket = route("runner", "gateway-socket", str(home.gateway_socket))
        yield ProcessSpec(
            name="runner",
            argv=(*penstock, "runner", *options, "--gateway", url, "--gateway-socket", socket),
            env=env("runner"),
            after=after("orchestrator"),
            ends_before=("gateway",) if "gateway" in only else (),  # it closes the sessions of its attempts
        )
    if "verifier" in only:
        yield ProcessSpec(
            name="verifier",
            argv=(*penstock, "verifier", *options),
            env=env("verifier"),
            after=after("gateway"),
        )
    if "trainer" in only:
        yield ProcessSpec(
            name="trainer",
            argv=(*penstock, "trainer", *options),
            env=env("trainer"),
            after=after(
                "gateway"
            ),  # like the verifier, it is not needed before rollouts run, and it loads for seconds
            restart=RestartPolicy(when=RestartWhen.ON_FAILURE),
        )
    if "web" in only:
        yield ProcessSpec(
            name="web",
            argv=(*penstock, "web", *options),
            env=env("web"),
            after=after(),
            ready=_dashboard(home.web_url_file),
        )


def _answers(url: str) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
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
