"""The gateway's composition: journal, sessions, rollout servers, listeners. Tests open it; `serve` runs it as a process.

    async with Gateway.open(settings, engine, bus, run_id) as gateway:
        gateway.url, gateway.socket_path, gateway.admin_secret

| loop | waits for | unblocked by |
|---|---|---|
| courier | the bus, the ingest | NATS, the orchestrator |
| lease, health probe and syncer, one per rollout server | its owner; its answer; a published version | time; the supervisor; the trainer |
| policy | the bus, Postgres | NATS, Postgres |
| sessions: forgets expired ones | time | time |
"""

import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
from aiohttp import web
from anyio.abc import TaskGroup
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.bus.courier import Courier, KeepTooLarge
from orchestrator.bus.journal import Journal, JournalEntry
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ServiceError
from orchestrator.contracts.languages import url_host
from orchestrator.contracts.states import Purpose
from orchestrator.gateway.completions.message_size import carried_tokens, longest_body, routes_limit
from orchestrator.gateway.completions.record import Recorder
from orchestrator.gateway.completions.service import CompletionService
from orchestrator.gateway.http.admin import AdminRoutes
from orchestrator.gateway.http.app import SandboxRoutes, guard
from orchestrator.gateway.http.listen import BACKLOG, listen_tcp, listen_unix
from orchestrator.gateway.http.protocol import WireRunner
from orchestrator.gateway.http.stored_routes import StoredRoutes
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.render import Renderer, experts, load_renderer
from orchestrator.gateway.servers.client import RolloutServerClient
from orchestrator.gateway.servers.health import HealthProbe
from orchestrator.gateway.servers.lease import ServerLease
from orchestrator.gateway.servers.pool import ServerPool
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.gateway.servers.targets import TargetVersion, announcements, evaluated_or_newest
from orchestrator.gateway.servers.weight_sync import WeightSyncer
from orchestrator.gateway.sessions.registry import SessionRegistry
from orchestrator.gateway.sessions.store import SessionStore
from orchestrator.pool.chat_format import check_chat_format_of, vocabulary
from orchestrator.pool.dead_letters import keep_unsendable
from orchestrator.pool.drain_requests import DrainRequests
from orchestrator.pool.engine import Role
from orchestrator.pool.heartbeats import send_heartbeats
from orchestrator.pool.opened import opened
from orchestrator.pool.policy_versions import newest_version
from orchestrator.pool.runs import get_run
from orchestrator.pool.server_leases import ServerRows
from orchestrator.pool.settled import settled_messages
from orchestrator.pool.transact import transact
from orchestrator.runtime.descriptors import raise_descriptor_limit
from orchestrator.runtime.failpoints import boundary_sync
from orchestrator.runtime.gc_tuning import keep_loaded
from orchestrator.runtime.liveness import restartable, track_loop
from orchestrator.runtime.log import bind, get
from orchestrator.runtime.metrics import joined
from orchestrator.runtime.secret_file import given_secret, shared_secret
from orchestrator.settings.config import Config, effective, ignored
from orchestrator.settings.timeouts import timeouts
from orchestrator.trajectory.routes import Experts

log = get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The settings of a gateway. Missing directories are created. `url_file` gets the actual URL, written atomically, once the gateway accepts
    calls. With port 0 a restarted gateway takes the port in this file again, if it is free. `server_key_file`: the key that its rollout servers
    require; None: they require none. `servers_user`: the user of their processes, all on this machine; None: it may be any."""

    run: str
    config: Config
    model_dir: Path
    server_urls: tuple[str, ...]
    socket_path: Path
    journal_dir: Path
    admin_secret_file: Path
    server_key_file: Path | None = None
    servers_user: int | None = None
    database_url: str = ""
    nats_url: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    url_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A listening gateway. `open` creates it."""

    url: str
    socket_path: Path
    admin_secret: str
    pool: ServerPool
    courier: Courier
    metrics: GatewayMetrics

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: GatewaySettings, engine: AsyncEngine, bus: Bus, run_id: int
    ) -> AsyncIterator["Gateway"]:
        """Run a gateway while the context is open. Raises ConfigurationError for problems that a person must fix.

        Without rollout servers it serves scripted sessions only, and needs no policy version.
        """
        if not settings.server_urls:
            log.warning("gateway.without_rollout_server", consequence="only scripted sessions are answered")
        await _check_chat_format(settings, engine, run_id)
        policy = _Policy.read(settings, bus)
        secret = shared_secret(settings.admin_secret_file)
        metrics = GatewayMetrics()
        async with AsyncExitStack() as stack:
            stack.enter_context(bind(run=settings.run))
            registry = stack.enter_context(joined(metrics.registry))
            journal = await _open_journal(stack, settings, metrics)
            pool = await _connect(stack, settings, metrics, policy)
            confirm = partial(settled_messages, engine, run_id, at="gateway.read")
            courier = Courier(journal, bus, confirm=confirm, unsendable=_unsendable(engine, run_id))
            # The journal is locked, so no other process has this name.
            owner = f"{socket.gethostname()}:{settings.journal_dir.absolute()}"
            store = SessionStore(engine, run_id, owner)
            orders = _orders(store, journal, pool)
            sessions = SessionRegistry(
                engine,
                run_id,
                renderer=policy.renderer,
                journal=journal,
                store=store,
                metrics=metrics,
                orders=orders,
            )
            rows = ServerRows(engine, run_id, owner=owner, ttl_s=settings.config.servers.lease_ttl_s)
            leases = await _leases(stack, rows, pool)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            completions = _completions(tasks, settings, policy, courier, pool, store, metrics)
            sandbox = SandboxRoutes(
                sessions,
                completions,
                metrics=metrics,
                model=settings.run,
                stored=StoredRoutes(sessions, store),
            )
            admin = _admin(settings, secret, sessions, completions, pool, registry, orders)
            tasks.start_soon(courier.run)
            await stack.enter_async_context(send_heartbeats(engine, run_id, orders))
            tasks.start_soon(restartable, "sessions", sessions.expire)
            _keep_weights(tasks, settings, pool, leases, metrics, engine=engine, bus=bus, run_id=run_id)
            await _listen(stack, settings, sandbox, admin)
            log.info("gateway.listening", url=admin.url, socket=str(settings.socket_path))
            yield cls(
                url=admin.url,
                socket_path=settings.socket_path,
                admin_secret=secret,
                pool=pool,
                courier=courier,
                metrics=metrics,
            )


async def serve(settings: GatewaySettings) -> None:
    """The gateway as a process: it connects and serves until cancelled. ConfigurationError or ServiceError name the missing part."""
    raise_descriptor_limit()
    async with (
        opened(
            settings.database_url,
            Role.GATEWAY,
            size=8,
            name="penstock-gateway",
            patience_s=timeouts().pool_start_s,
        ) as engine,
        NatsBus.connect(settings.nats_url, name=f"gateway-{settings.run}") as bus,
    ):
        async with engine.connect() as connection:
            run = await get_run(connection, settings.run)
        if changed := ignored(run.config, settings.config):
            log.warning("run.configuration_kept", changed=changed, advice="a run keeps what it began with")
        config = effective(run.config, settings.config)
        model = Path(config.policy.model) if config.policy.model else settings.model_dir
        settings = replace(settings, config=config, model_dir=model)
        async with Gateway.open(settings, engine, bus, run.run_id):
            keep_loaded(infrequent=True)
            await anyio.sleep_forever()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    """How the policy's steps are rendered and recorded. `routed`: the experts whose routes are recorded, up to `routes_bytes` a step; None: no
    routes are recorded. `longest_body`: bytes of the largest step. `carried`: the longest context, in tokens, whose steps are not larger."""

    renderer: Renderer
    routed: Experts | None
    routes_bytes: int
    longest_body: int
    carried: int

    @classmethod
    def read(cls, settings: GatewaySettings, bus: Bus) -> "_Policy":
        """Read it from the model directory. Raises ConfigurationError if no renderer fits."""
        config = settings.config
        renderer = load_renderer(settings.model_dir, unproven=config.gateway.unproven_template)
        carried = carried_tokens(bus.max_payload, config.sampling.max_new_tokens)
        if carried < renderer.context:
            log.warning(
                "gateway.context_of_bus",
                tokens=carried,
                of_the_model=renderer.context,
                why=f"a message of the NATS server has at most {bus.max_payload:,} bytes: raise max_payload in its configuration",
            )
        return cls(
            renderer=renderer,
            routed=experts(settings.model_dir) if config.trainer.routing_replay else None,
            routes_bytes=routes_limit(config.gateway.routes_mb, bus.max_payload),
            longest_body=longest_body(bus.max_payload),
            carried=carried,
        )


def server_key(settings: GatewaySettings) -> str | None:
    """The key of the rollout servers; None: they require none. That of servers which Penstock does not start is never made here: they would refuse
    it. Raises ConfigurationError if it is missing, and like `runtime.secret_file.read_secret`."""
    if (file := settings.server_key_file) is None:
        return None
    return given_secret(file, "servers.key_file") if settings.config.servers.urls else shared_secret(file)


async def _connect(
    stack: AsyncExitStack, settings: GatewaySettings, metrics: GatewayMetrics, policy: _Policy
) -> ServerPool:
    """The run's rollout servers, with a client of each on `stack`."""
    config, routed = settings.config.servers, policy.routed
    key = server_key(settings)
    known = vocabulary(settings.model_dir)
    clients = [
        await stack.enter_async_context(
            RolloutServerClient(url, vocabulary=known, experts=routed, key=key, user=settings.servers_user)
        )
        for url in settings.server_urls
    ]
    return ServerPool(
        [RolloutServer(client, silence_s=config.silence_s) for client in clients],
        metrics,
        spill_s=config.spill_s,
        longest_routed=routed.tokens_in(policy.routes_bytes) if routed is not None else None,
        reserved=min(config.evaluation, max(0, len(clients) - 1)),
    )


def _orders(store: SessionStore, journal: Journal, pool: ServerPool) -> DrainRequests:
    """The drain orders of this gateway and of its rollout servers. Its remaining work: sessions of running rollouts and unsent steps."""

    async def pending_writes(connection: AsyncConnection) -> int:
        return await store.running(connection) + len(journal.pending())

    orders = DrainRequests(of_servers=True)
    orders.own, orders.calls = pending_writes, pool.calls_at
    orders.servers_changed = lambda: pool.drain(orders.servers)
    return orders


async def _leases(stack: AsyncExitStack, rows: ServerRows, pool: ServerPool) -> list[ServerLease]:
    """The leases of the rollout servers, not taken yet; `stack` releases them."""
    await rows.leave_others([server.url for server in pool.servers])
    leases = [ServerLease(rows, server.url) for server in pool.servers]
    stack.push_async_callback(_release, leases)
    return leases


def _completions(
    tasks: TaskGroup,
    settings: GatewaySettings,
    policy: _Policy,
    courier: Courier,
    pool: ServerPool,
    store: SessionStore,
    metrics: GatewayMetrics,
) -> CompletionService:
    """The service behind the calls: it generates in `pool` and records by `courier`."""
    recorder = Recorder(
        settings.run,
        courier,
        stop_ids=policy.renderer.stop_ids,
        metrics=metrics,
        experts=policy.routed,
        routes_bytes=policy.routes_bytes,
        longest_body=policy.longest_body,
    )
    return CompletionService(
        tasks=tasks,
        renderer=policy.renderer,
        pool=pool,
        recorder=recorder,
        store=store,
        sampling=settings.config.sampling,
        metrics=metrics,
        replay_hold_s=settings.config.gateway.replay_hold_s,
        carried=policy.carried,
    )


def _admin(
    settings: GatewaySettings,
    secret: str,
    sessions: SessionRegistry,
    completions: CompletionService,
    pool: ServerPool,
    registry: CollectorRegistry,
    orders: DrainRequests,
) -> AdminRoutes:
    """The routes for runners and operators."""
    config = settings.config.gateway
    return AdminRoutes(
        run=settings.run,
        secret=secret,
        sessions=sessions,
        pool=pool,
        registry=registry,
        session_ttl_s=config.session_ttl_s,
        socket_path=settings.socket_path,
        sandbox_port=config.sandbox_port,
        orders=orders,
        context=completions.budgets.context,
        cut_off=completions.cut_off,
    )


def _keep_weights(
    tasks: TaskGroup,
    settings: GatewaySettings,
    pool: ServerPool,
    leases: Sequence[ServerLease],
    metrics: GatewayMetrics,
    *,
    engine: AsyncEngine,
    bus: Bus,
    run_id: int,
) -> None:
    """Start the loops that hold each rollout server's lease, probe it and sync it to the version that it should serve."""
    config = settings.config
    poll_interval_s = config.servers.version_poll_interval_s
    published = TargetVersion(engine, run_id, newest_version, poll_interval_s=poll_interval_s)
    evaluated = TargetVersion(engine, run_id, evaluated_or_newest, poll_interval_s=poll_interval_s)
    announced = partial(announcements, published, bus, settings.run, metrics)
    tasks.start_soon(restartable, "versions.bus", announced)
    tasks.start_soon(restartable, "versions.look", published.watch)
    if pool.reserved:
        tasks.start_soon(restartable, "versions.evaluated", evaluated.watch)
    for server, lease in zip(pool.servers, leases, strict=True):
        probe = HealthProbe(server, metrics, probe_s=config.servers.probe_s)
        reserved = server in pool.reserved
        syncer = WeightSyncer(
            server,
            lease,
            target=evaluated if reserved else published,
            metrics=metrics,
            settings=config.servers,
            tolerance=config.gateway.canary_tolerance,
            purpose=Purpose.EVAL if reserved else Purpose.TRAIN,
        )
        tasks.start_soon(restartable, f"lease {server.url}", lease.run)
        tasks.start_soon(restartable, f"watch {server.url}", probe.run)
        tasks.start_soon(_run_syncer, f"syncer {server.url}", syncer)


async def _listen(
    stack: AsyncExitStack, settings: GatewaySettings, sandbox: SandboxRoutes, admin: AdminRoutes
) -> None:
    """Serve sandboxes, then runners; `admin` gets the URL, and `settings.url_file`."""
    config = settings.config.gateway
    limit = config.body_limit_mb * 1024 * 1024
    for_sandboxes = [listen_unix(settings.socket_path)]
    if config.sandbox_port:
        for_sandboxes.append(listen_tcp(settings.host, config.sandbox_port))
    await _serve(stack, _app(sandbox.routes(), limit), *for_sandboxes)
    tcp = listen_tcp(settings.host, settings.port, preferred=_last_port(settings.url_file))
    port = tcp.getsockname()[1]
    admin.url = f"http://{url_host(settings.host)}:{port}"
    await _serve(stack, _app([*sandbox.routes(), *admin.routes()], limit), tcp)
    if settings.url_file is not None:
        _write_atomically(settings.url_file, admin.url + "\n")


async def _run_syncer(name: str, syncer: WeightSyncer) -> None:
    """Run `syncer`. It is never restarted, because a sync that is interrupted in the middle blocks every call."""
    with track_loop(name):
        await syncer.run()


async def _release(leases: Sequence[ServerLease]) -> None:
    """Release the leases, so that another gateway need not wait until they run out. If the data pool is away, it must wait."""
    with anyio.move_on_after(timeouts().server_release_s, shield=True):
        for lease in leases:
            await lease.release()


async def _check_chat_format(settings: GatewaySettings, engine: AsyncEngine, run_id: int) -> None:
    await transact(
        engine,
        lambda connection: check_chat_format_of(connection, run_id, settings.run, settings.model_dir),
        at="gateway.read",
    )


async def _open_journal(stack: AsyncExitStack, settings: GatewaySettings, metrics: GatewayMetrics) -> Journal:
    journal = await stack.enter_async_context(
        Journal.open(settings.journal_dir, int(settings.config.gateway.spool_mb * 2**20))
    )
    metrics.spool.set_function(lambda: journal.held_bytes)
    return journal


def _unsendable(engine: AsyncEngine, run_id: int) -> KeepTooLarge:
    async def keep(entry: JournalEntry, reason: str) -> None:
        """A step that no stream accepts becomes a dead letter. Its attempt is then never complete, and runs again."""
        message = entry.message
        await transact(
            engine,
            lambda connection: keep_unsendable(
                connection, run_id, message.subject, message.schema, message.msg_id, message.body, reason
            ),
            at="gateway.refused",
        )

    return keep


def _app(routes: Sequence[web.RouteDef], limit: int) -> web.Application:
    app = web.Application(client_max_size=limit, middlewares=[guard])
    app.add_routes(routes)
    return app


async def _serve(stack: AsyncExitStack, app: web.Application, *listeners: socket.socket) -> None:
    # A harness that disconnects cancels its handler. The gateway notices an abandoned call by this.
    runner = WireRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(_stop, runner)
    # aiohttp calls listen() again, with its own backlog.
    for listener in listeners:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()


async def _stop(runner: web.AppRunner) -> None:
    """Close the listeners, shielded from cancellation: no client may reach a gateway whose tasks have ended."""
    with anyio.CancelScope(shield=True):  # bounded: `shutdown_timeout`
        await runner.cleanup()


def _last_port(url_file: Path | None) -> int:
    """The port that this gateway had before a restart, so that sessions' URLs stay valid; 0 when unknown."""
    try:
        port = url_file.read_text().strip().rpartition(":")[2] if url_file is not None else ""
    except OSError:
        return 0
    return int(port) if port.isascii() and port.isdigit() else 0


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        boundary_sync("gateway.url", lambda: os.replace(temporary, path))
    except OSError as error:
        raise ServiceError(
            f"the gateway cannot say in {path} where it listens: {error}; make room there"
        ) from error
