"""Shared by the tests of the gateway: a real rollout server behind a proxy that records every id, and a gateway on real services."""

import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest
import torch
from aiohttp import web
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.events import PolicyPublished, encode
from orchestrator.contracts.processes import PauseMode
from orchestrator.contracts.states import Purpose
from orchestrator.gateway.completions.service import CompletionService
from orchestrator.gateway.server import Gateway, GatewaySettings
from orchestrator.gateway.sessions.call import CompletionCall
from orchestrator.gateway_client import GatewayAdmin, OpenSession, Seal, SessionBudget
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.runs import ensure_run
from orchestrator.pool.steps import StoredStep, trajectories
from orchestrator.pool.submissions import NewGroup, accept
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.ingest import ingest_steps
from orchestrator.settings.config import Config
from tests.waiting import eventually
from trainer.checkpoint import Checkpoint, TrainerState, save_checkpoint
from trainer.model import load_model
from trainer.policy.init import make_policy

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Policies:
    """A model directory, and its published versions: version n is the random policy of seed n."""

    model: Path
    versions: tuple[Checkpoint, ...]


def make_policies(directory: Path, count: int) -> Policies:
    """`count` checkpoints, each with its manifest and canary."""
    versions = []
    for seed in range(count):
        base = make_policy(directory / f"base-{seed}", seed=seed)
        model = load_model(base)
        optimizer = torch.optim.AdamW(model.parameters())
        state = TrainerState(version=seed, batch_no=None, train_steps=0)
        ids = list(range(260, 300))
        versions.append(
            save_checkpoint(
                directory / "checkpoints", model, optimizer, state, tokenizer=base, canary_ids=ids
            )
        )
    return Policies(directory / "base-0", tuple(versions))


@dataclass(kw_only=True)
class Proxy:
    """Proxy in front of the rollout server. `sent` are the /generate exchanges in the order of their answers: (input_ids, output_ids).

    `requests` and `answers` are the same with whole bodies; `requests` includes the unanswered ones. `seen` is every path, in the order of the
    requests. A connection that the server drops is dropped here too.
    """

    target: str
    url: str = ""
    sent: list[tuple[list[int], list[int]]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    busy: int = 0
    most: int | None = None  # completions that pass; the others wait here until their client leaves
    held: dict[str, anyio.Event] = field(default_factory=dict)  # paths that wait here first
    swallowed: set[str] = field(default_factory=set)  # paths that are answered here, and never arrive
    odd: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # paths that get this status and body
    misreported: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # as `odd`, but they arrive
    untold: tuple[str, ...] = ()  # keys whose text no answer tells
    # Tokens after which the next completions are broken off, as a pause does.
    cuts: list[int] = field(default_factory=list)
    # Tokens after which the next completions stand still. A pause or an abort breaks them off, as it does on the server; so does `go_on`.
    stops: list[int] = field(default_factory=list)
    _standing: dict[str, anyio.Event] = field(default_factory=dict)  # by request id
    _under_way: list[web.Request] = field(default_factory=list)

    def drop(self) -> None:
        """Break every connection with a running completion."""
        for request in self._under_way:
            assert request.transport is not None
            request.transport.abort()

    @property
    def standing(self) -> int:
        """Completions of `stops` that have their tokens and stand still."""
        return len(self._standing)

    def go_on(self, rid: str | None = None) -> None:
        """Break off the completion of a request that stands still; None: of all."""
        for standing, event in self._standing.items():
            if rid in (None, standing):
                event.set()

    async def _stand_still(self, rid: str) -> None:
        event = self._standing[rid] = anyio.Event()
        try:
            await event.wait()
        finally:
            del self._standing[rid]

    async def forward(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body = await request.json() if raw and request.path == "/generate" else {}
        sampled = bool(body) and "logprob_start_len" not in body
        broken_off = stops = False
        self.seen.append("canary" if body and not sampled else request.path)
        if request.path in self.swallowed:
            return web.Response()
        if request.path in self.odd and (sampled or request.path != "/generate"):
            status, odd = self.odd[request.path]
            return web.Response(status=status, body=odd, content_type="application/json")
        if request.path in self.held:
            await self.held[request.path].wait()
        if sampled and self.most is not None and len(self.requests) >= self.most:
            await anyio.sleep_forever()
        self.busy += bool(body)
        if sampled:
            self.requests.append(body)
            self._under_way.append(request)
            if self.cuts:
                body["sampling_params"]["max_new_tokens"] = self.cuts.pop(0)
                raw = msgspec.json.encode(body)
                broken_off = True
            elif self.stops:
                until = {**body["sampling_params"], "max_new_tokens": self.stops.pop(0)}
                raw = msgspec.json.encode({**body, "sampling_params": until})
                broken_off = stops = True
        if request.path == "/pause_generation" and json.loads(raw)["mode"] == PauseMode.ABORT:
            self.go_on()
        elif request.path == "/abort_request":
            self.go_on(json.loads(raw).get("rid"))
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
                async with http.request(
                    request.method,
                    self.target + request.path,
                    data=raw,
                    headers={"Content-Type": "application/json"},
                ) as answer:
                    reply = await answer.read()
                    if request.path in self.misreported:
                        status, other = self.misreported[request.path]
                        return web.Response(status=status, body=other, content_type="application/json")
                    for key in self.untold:
                        reply = re.sub(rb'"%s":"[^"]*"' % key.encode(), rb'"%s":""' % key.encode(), reply)
                    if stops:
                        await self._stand_still(body["rid"])
                    if broken_off:
                        reply = reply.replace(b'"type":"length"', b'"type":"abort"')
                    if sampled:
                        self.bodies.append(body)
                        self.answers.append(await answer.json())
                        self.sent.append((body["input_ids"], self.answers[-1]["output_ids"]))
                    return web.Response(body=reply, status=answer.status, content_type="application/json")
        except aiohttp.ClientConnectionError:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=502)
        finally:
            self._under_way = [other for other in self._under_way if other is not request]
            self.busy -= bool(body)


@asynccontextmanager
async def running_proxy(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target=target)
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{tail:.*}", proxy.forward)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        await runner.cleanup()


@dataclass(kw_only=True)
class Rig:
    """One run with a gateway; `engine` is the owner's connection, the gateway has its own role."""

    run: str
    run_id: int
    engine: AsyncEngine
    context: OrchestratorContext
    proxy: Proxy  # of the first rollout server
    proxies: Sequence[Proxy]
    policies: Policies
    settings: GatewaySettings
    gateway: Gateway
    admin: GatewayAdmin
    tasks: anyio.abc.TaskGroup
    stop_gateway: Callable[[], Awaitable[None]]
    ingest: anyio.CancelScope | None = None
    forgiven: float = 0.0  # steps that a test made drift on purpose

    def forgive_drift(self) -> None:
        """The drift so far was intended."""
        self.forgiven = drift(self.gateway)

    @asynccontextmanager
    async def another_gateway(self) -> AsyncIterator[tuple[Gateway, GatewayAdmin]]:
        """A gateway after the rig's own, on the same journal, secret and port."""
        async with (
            open_engine(self.settings.database_url, Role.GATEWAY) as engine,
            Gateway.open(self.settings, engine, self.context.bus, self.run_id) as gateway,
            GatewayAdmin(gateway.url, gateway.admin_secret) as admin,
        ):
            yield gateway, admin

    async def new_rollout(self) -> int:
        """A rollout that is leased at epoch 1."""
        name = secrets.token_hex(6)
        new = NewGroup(
            submission=name,
            task_sha=secrets.token_bytes(32),
            task_name=name,
            domain="general",
            settings={},
            body={},
            purpose=Purpose.EVAL,
            scaffold="shell",
            size=1,
            seed=7,
        )
        async with self.engine.begin() as connection:
            await accept(connection, self.run_id, new)
            found = await connection.scalar(
                text(
                    "UPDATE rollouts SET state = 'running', lease_epoch = 1 WHERE group_id ="
                    " (SELECT group_id FROM groups WHERE submission = :name) RETURNING rollout_id"
                ),
                {"name": name},
            )
        return int(found)

    async def open(self, rollout: int | None = None, **options: Any) -> tuple[int, OpenSession]:
        """Open a session of a rollout (a new rollout by default), with a large budget unless `budget` is given."""
        rollout = await self.new_rollout() if rollout is None else rollout
        terms: dict[str, Any] = {
            "epoch": 1,
            "attempt": 1,
            "budget": SessionBudget(max_turns=20, max_context=2048),
        }
        options = terms | options
        return rollout, await self.admin.open_session(run=self.run, rollout=rollout, **options)

    async def seal(self, rollout: int, *, epoch: int = 1) -> Seal:
        return await self.admin.seal(rollout=rollout, attempt=1, epoch=epoch)

    async def publish(
        self, version: int, *, path: Path | None = None, manifest_sha: str | None = None
    ) -> None:
        """Commit and announce a version, as the trainer does."""
        checkpoint = self.policies.versions[version]
        async with self.engine.begin() as connection:
            await connection.execute(
                text(
                    "INSERT INTO policy_versions (run_id, version, path, manifest_sha) VALUES (:run, :version, :path, :sha)"
                ),
                {
                    "run": self.run_id,
                    "version": version,
                    "path": str(path or checkpoint.path),
                    "sha": manifest_sha or checkpoint.manifest_sha,
                },
            )
        event = PolicyPublished(
            run=self.run, version=version, path="", manifest_sha="", batch_no=None, revision=version
        )
        subject, identity = subjects.policy(self.run), secrets.token_hex(8)
        await self.context.bus.publish(
            Outgoing(subject=subject, msg_id=identity, schema=event.schema(), body=encode(event))
        )

    def start_ingest(self) -> None:
        """Steps go into Postgres from now on, until `stop_ingest`."""
        self.ingest = anyio.CancelScope()

        async def run(scope: anyio.CancelScope) -> None:
            with scope:
                await ingest_steps(self.context)

        self.tasks.start_soon(run, self.ingest)

    async def stored(self, rollout: int, count: int) -> list[StoredStep]:
        """Wait until `count` steps of attempt 1 are in Postgres; returns them folded."""
        found: list[StoredStep] = []

        async def steps() -> list[StoredStep]:
            nonlocal found
            async with self.engine.connect() as connection:
                found = (await trajectories(connection, self.run_id, [(rollout, 1)])).get(rollout, [])
            return found

        try:
            return await eventually(
                steps, lambda found: len(found) >= count, within_s=PATIENCE_S, every_s=0.05
            )
        except TimeoutError:
            idxs = [step.idx for step in found]
            raise AssertionError(f"of {count} steps only {idxs} are stored") from None

    async def rows(self, query: str, **parameters: Any) -> Sequence[Any]:
        async with self.engine.connect() as connection:
            return (await connection.execute(text(query), parameters)).all()


def drift(gateway: Gateway) -> float:
    """Steps whose record differs from the ids that the rollout server saw."""
    value = gateway.metrics.registry.get_sample_value("penstock_gateway_drift_total")
    assert value is not None
    return value


OpenRig = Callable[..., AbstractAsyncContextManager[Rig]]


@asynccontextmanager
async def open_rig(
    database_url: str,
    nats_url: str,
    server_url: str | Sequence[str],
    policies: Policies,
    directory: Path,
    *,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
    **sampling: Any,
) -> AsyncIterator[Rig]:
    """A gateway in this process, before one rollout server or several. Version 0 is not published yet; the ingest does not run yet.
    `sections` are other parts of the configuration."""
    run = f"r{secrets.token_hex(6)}"
    config = Config.model_validate(
        {"run": {"name": run}, "sampling": {"max_new_tokens": 24, **sampling}, **(sections or {})}
    )
    urls = [server_url] if isinstance(server_url, str) else server_url
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(running_proxy(url)) for url in urls]
        proxy = proxies[0]
        engine = await stack.enter_async_context(open_engine(database_url))
        async with engine.begin() as connection:
            run_id = (await ensure_run(connection, run, config.to_json())).run_id
        # Streams of its own: message ids are unique within a database, and every test has another one.
        streams = [replace(stream, max_bytes=8 * 2**20) for stream in subjects.STREAMS]
        bus = await stack.enter_async_context(NatsBus.connect(nats_url, prefix=run, streams=streams))
        await bus.ensure_streams()
        settings = GatewaySettings(
            run=run,
            config=config,
            model_dir=policies.model,
            server_urls=tuple(each.url for each in proxies),
            socket_path=directory / "socket" / "gateway.sock",
            journal_dir=directory / "journal",
            admin_secret_file=directory / "admin-secret",
            database_url=database_url,
            nats_url=nats_url,
            url_file=directory / "url",
        )
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stop, stopped = anyio.Event(), anyio.Event()

        async def serve(*, task_status: anyio.abc.TaskStatus[Gateway]) -> None:
            """The first gateway, in a task of its own, so that a test may end it."""
            async with (
                open_engine(database_url, Role.GATEWAY) as own,
                Gateway.open(settings, own, bus, run_id) as gateway,
            ):
                task_status.started(gateway)
                await stop.wait()
            stopped.set()

        async def stop_gateway() -> None:
            stop.set()
            await stopped.wait()

        gateway = await tasks.start(serve)
        admin = await stack.enter_async_context(GatewayAdmin(gateway.url, gateway.admin_secret))
        context = OrchestratorContext(run_id=run_id, run=run, config=config, engine=engine, bus=bus)
        rig = Rig(
            run=run,
            run_id=run_id,
            engine=engine,
            context=context,
            proxy=proxy,
            proxies=proxies,
            policies=policies,
            settings=settings,
            gateway=gateway,
            admin=admin,
            tasks=tasks,
            stop_gateway=stop_gateway,
        )
        yield rig
        assert drift(gateway) == rig.forgiven, "a step's record does not fold to what the rollout server saw"
        await stop_gateway()
        tasks.cancel_scope.cancel()


async def until_row(rig: Rig, query: str) -> None:
    """Wait until the query has a row."""
    await eventually(lambda: rig.rows(query), every_s=0.05)


def watched_calls(monkeypatch: pytest.MonkeyPatch) -> list[CompletionCall]:
    """The calls that the gateway serves requests from, one entry for each request, in the order of their arrival."""
    begin, calls = CompletionService.begin, list[CompletionCall]()

    def watched(*of: Any) -> CompletionCall:
        calls.append(begin(*of))
        return calls[-1]

    monkeypatch.setattr(CompletionService, "begin", watched)
    return calls


async def held_generation(rig: Rig) -> anyio.Event:
    """Generation waits from now on until the event is set; the server serves already, so no canary waits."""
    await eventually(lambda: rig.gateway.pool.servers[0].ready)
    rig.proxy.held["/generate"] = anyio.Event()
    return rig.proxy.held["/generate"]
