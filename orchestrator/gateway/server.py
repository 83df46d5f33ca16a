"""The gateway put together: journal, sessions, rollout servers, listeners; open in a test, served as a process.

    async with Gateway.open(settings, engine, bus, run_id) as gateway:
        gateway.url, gateway.socket_path, gateway.admin_secret

| loop | waits for | unblocked by |
|---|---|---|
| courier | the bus, the ingest | NATS, the orchestrator |
| lease, watch and keeper, one per rollout server | its owner; its answer; a published version | time; the supervisor; the trainer |
| policy | the bus, Postgres | NATS, Postgres |
| sessions: forgets expired ones | time | time |
"""

import os
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.bus.courier import Confirm, Courier, Unsendable
from orchestrator.bus.journal import Entry, Journal
from orchestrator.bus.nats import NatsBus
from orchestrator.clock import clock
from orchestrator.collector import keep_loaded
from orchestrator.config import Config
from orchestrator.contracts.errors import ServiceError
from orchestrator.contracts.states import Purpose
from orchestrator.failpoints import boundary_sync
from orchestrator.gateway.admin import AdminRoutes, admin_secret
from orchestrator.gateway.app import SandboxRoutes, guard
from orchestrator.gateway.book import SessionBook
from orchestrator.gateway.calls import Calls
from orchestrator.gateway.leases import ServerLease, ServerRows
from orchestrator.gateway.listen import BACKLOG, listen_tcp, listen_unix
from orchestrator.gateway.metrics import Metrics
from orchestrator.gateway.record import Recorder, routes_limit
from orchestrator.gateway.render import experts, load_renderer, vocabulary
from orchestrator.gateway.rollout_server import RolloutServer
from orchestrator.gateway.servers import ServerPool
from orchestrator.gateway.store import SessionStore
from orchestrator.gateway.sync import EvaluatedVersions, Keeper, PublishedVersions
from orchestrator.gateway.upstream import RolloutServerClient
from orchestrator.gateway.watch import Watch
from orchestrator.log import bind, get
from orchestrator.metrics import joined
from orchestrator.pool.chat_format import check_chat_format_of
from orchestrator.pool.confirm import MessageKey, settled
from orchestrator.pool.dead import keep_unsendable
from orchestrator.pool.engine import Role, check_revision, open_engine
from orchestrator.pool.orders import Orders
from orchestrator.pool.presence import announced
from orchestrator.pool.runs import get_run
from orchestrator.pool.transact import transact
from orchestrator.progress import looping, restartable

log = get(__name__)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All that a gateway needs. Directories are made when absent. `url_file` gets the actual URL, whole, once calls can come;
    with port 0 a restarted gateway takes the port again that this file names, if it is free."""

    run: str
    config: Config
    model_dir: Path
    server_urls: tuple[str, ...]
    socket_path: Path
    journal_dir: Path
    admin_secret_file: Path
    database_url: str = ""
    nats_url: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    url_file: Path | None = None


class Gateway:
    """A gateway that listens. Made by `open`."""

    def __init__(
        self,
        url: str,
        socket_path: Path,
        secret: str,
        pool: ServerPool,
        courier: Courier,
        metrics: Metrics,
    ) -> None:
        self.url = url
        self.socket_path = socket_path
        self.admin_secret = secret
        self.pool = pool
        self.courier = courier
        self.metrics = metrics

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: GatewaySettings, engine: AsyncEngine, bus: Bus, run_id: int
    ) -> AsyncIterator["Gateway"]:
        """Run a gateway while the context is open. ConfigurationError for what a person must change.

        Without rollout servers it serves scripted sessions only, and needs no policy version.
        """
        if not settings.server_urls:
            log.warning("gateway.without_rollout_server", consequence="only scripted sessions are answered")
        config = settings.config
        await transact(
            engine,
            lambda connection: check_chat_format_of(connection, run_id, settings.run, settings.model_dir),
            at="gateway.read",
        )
        renderer = load_renderer(settings.model_dir, unproven=config.gateway.unproven_template)
        routed = experts(settings.model_dir) if config.trainer.routing_replay else None
        routes_bytes = routes_limit(config.gateway.routes_mb, bus.max_payload)
        settings.admin_secret_file.parent.mkdir(parents=True, exist_ok=True)
        secret = admin_secret(settings.admin_secret_file)
        metrics = Metrics()
        async with AsyncExitStack() as stack:
            stack.enter_context(bind(run=settings.run))
            registry = stack.enter_context(joined(metrics.registry))
            journal = await stack.enter_async_context(
                Journal.open(settings.journal_dir, int(config.gateway.spool_mb * 2**20))
            )
            metrics.spool.set_function(lambda: journal.held_bytes)
            known = vocabulary(settings.model_dir)
            clients = [
                await stack.enter_async_context(RolloutServerClient(url, vocabulary=known, experts=routed))
                for url in settings.server_urls
            ]
            servers = [RolloutServer(client, silence_s=config.servers.silence_s) for client in clients]
            pool = ServerPool(
                servers,
                metrics,
                spill_s=config.servers.spill_s,
                longest_routed=routed.tokens_in(routes_bytes) if routed is not None else None,
                reserved=min(config.servers.evaluation, max(0, len(servers) - 1)),
            )
            courier = Courier(journal, bus, _confirm(engine, run_id), _unsendable(engine, run_id))
            # The journal is locked: nobody else has this name.
            owner = f"{socket.gethostname()}:{settings.journal_dir.absolute()}"
            sessions = SessionStore(engine, run_id, owner)
            orders = Orders(of_servers=True)
            book = SessionBook(engine, run_id, renderer, journal, sessions, metrics, orders)
            versions = PublishedVersions(engine, run_id, metrics, look_s=config.servers.look_s)
            evaluated = EvaluatedVersions(engine, run_id, look_s=config.servers.look_s)
            rows = ServerRows(engine, run_id, owner, config.servers.lease_ttl_s)
            leases = [ServerLease(rows, server.url) for server in servers]
            stack.push_async_callback(_release, leases)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            recorder = Recorder(settings.run, courier, renderer.stop_ids, metrics, routed, routes_bytes)
            calls = Calls(
                tasks=tasks,
                renderer=renderer,
                pool=pool,
                recorder=recorder,
                store=sessions,
                sampling=config.sampling,
                metrics=metrics,
                replay_hold_s=config.gateway.replay_hold_s,
            )
            sandbox = SandboxRoutes(book, calls, metrics, settings.run)
            admin = AdminRoutes(
                run=settings.run,
                secret=secret,
                book=book,
                pool=pool,
                registry=registry,
                session_ttl_s=config.gateway.session_ttl_s,
                socket_path=settings.socket_path,
                sandbox_port=config.gateway.sandbox_port,
                orders=orders,
            )
            tasks.start_soon(courier.run)

            async def held(connection: AsyncConnection) -> int:
                return await sessions.running(connection) + len(journal.pending())

            orders.own, orders.calls = held, pool.calls_at
            orders.servers_changed = lambda: pool.drain(orders.servers)
            await stack.enter_async_context(announced(engine, run_id, orders))
            tasks.start_soon(restartable, "sessions", book.tidy)
            tasks.start_soon(restartable, "versions.bus", partial(versions.follow, bus, settings.run))
            tasks.start_soon(restartable, "versions.look", versions.watch)
            if pool.reserved:
                tasks.start_soon(restartable, "versions.evaluated", evaluated.watch)
            for server, lease in zip(servers, leases, strict=True):
                watch = Watch(server, metrics, probe_s=config.servers.probe_s)
                reserved = server in pool.reserved
                keeper = Keeper(
                    server,
                    lease,
                    evaluated if reserved else versions,
                    metrics,
                    config.servers,
                    tolerance=config.gateway.canary_tolerance,
                    purpose=Purpose.EVAL if reserved else Purpose.TRAIN,
                )
                tasks.start_soon(restartable, f"lease {server.url}", lease.run)
                tasks.start_soon(restartable, f"watch {server.url}", watch.run)
                tasks.start_soon(_keep, f"keeper {server.url}", keeper)

            limit = config.gateway.body_limit_mb * 1024 * 1024
            inside = _app(sandbox.routes(), limit)
            outside = _app([*sandbox.routes(), *admin.routes()], limit)
            for_sandboxes = [listen_unix(settings.socket_path)]
            if config.gateway.sandbox_port:
                for_sandboxes.append(listen_tcp(settings.host, config.gateway.sandbox_port))
            await _serve(stack, inside, *for_sandboxes)
            tcp = listen_tcp(settings.host, settings.port, preferred=_last_port(settings.url_file))
            port = tcp.getsockname()[1]
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            admin.url = f"http://{host}:{port}"
            await _serve(stack, outside, tcp)
            if settings.url_file is not None:
                _write_atomically(settings.url_file, admin.url + "\n")
            log.info("gateway.listening", url=admin.url, socket=str(settings.socket_path))
            yield cls(admin.url, settings.socket_path, secret, pool, courier, metrics)


async def serve(settings: GatewaySettings) -> None:
    """The gateway as a process: connects, serves until cancelled. ConfigurationError or ServiceError name what is missing."""
    async with (
        open_engine(
            settings.database_url, Role.GATEWAY, name="penstock-gateway", patience_s=clock().pool_start_s
        ) as engine,
        NatsBus.connect(settings.nats_url, name=f"gateway-{settings.run}") as bus,
    ):
        async with engine.connect() as connection:
            await check_revision(connection)
            run = await get_run(connection, settings.run)
        # A run keeps the sampling parameters that it began with; the rest is this process's own.
        config = settings.config.model_copy(update={"sampling": Config.from_json(run.config).sampling})
        async with Gateway.open(replace(settings, config=config), engine, bus, run.run_id):
            keep_loaded(seldom=True)
            await anyio.sleep_forever()


async def _keep(name: str, keeper: Keeper) -> None:
    """Not to be begun anew: a sync that is cut off in the middle holds every call."""
    with looping(name):
        await keeper.run()


async def _release(leases: Sequence[ServerLease]) -> None:
    """Another gateway need not wait until the leases run out; if the data pool is away, it does."""
    with anyio.move_on_after(clock().server_release_s, shield=True):
        for lease in leases:
            await lease.release()


def _confirm(engine: AsyncEngine, run_id: int) -> Confirm:
    async def confirm(entries: Sequence[Entry]) -> Collection[int]:
        """Numbers of the entries that Postgres has or refuses."""
        numbers = {MessageKey.parse(entry.message.msg_id): entry.n for entry in entries}
        found = await transact(
            engine, lambda connection: settled(connection, run_id, list(numbers)), at="gateway.read"
        )
        return [numbers[key] for key in found]

    return confirm


def _unsendable(engine: AsyncEngine, run_id: int) -> Unsendable:
    async def keep(entry: Entry, reason: str) -> None:
        """A step that no stream takes is a dead letter; its attempt is then never complete, and runs again."""
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
    # A harness that disconnects cancels its handler: that is how an abandoned call is noticed.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(_stop, runner)
    # aiohttp listens once more, with a backlog of its own.
    for listener in listeners:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()


async def _stop(runner: web.AppRunner) -> None:
    """Nobody may reach a gateway whose tasks have ended: not even cancelled does it go on before its listeners are closed."""
    with anyio.CancelScope(shield=True):  # bounded: `shutdown_timeout`
        await runner.cleanup()


def _last_port(url_file: Path | None) -> int:
    """The port that this gateway had before a restart, 0 when unknown: sessions' URLs then stay valid."""
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
