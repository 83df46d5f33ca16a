"""The map of a running Penstock, and the composition root of the orchestrator process.

    users ──tasks.*──▶ NATS ──▶ orchestrator ──▶ Postgres = the data pool = the only truth
                        ▲  │                          ▲            │ windowed-FIFO batches
                steps.* │  │ work.*                   │            ▼
    gateway ◀── runner ─┴──┴── verifier runner ───────┘         trainer ──▶ policy.* + weights in a directory
       │                                                           │
       └──▶ rollout servers ◀──────────── the gateway syncs new versions

One event loop, one task group, one role per file in `orchestrator.roles`:

    intake          tasks.*            → groups, rollouts, submissions      (pool.submissions)
    blobs           blobs.*            → parts of large tasks               (pool.blobs)
    missing_blobs   names of blobs     → the names that the pool lacks      (pool.blobs)
    dispatcher      accepted groups    → seq, assignments                   (scheduling.admission, pool.dispatch)
    steps           steps.*            → steps                              (roles.ingest, pool.ingest)
    results         results of runners → results of attempts                (roles.ingest, pool.results)
    verdicts        verdicts           → verdicts of attempts               (roles.ingest, pool.results)
    relay           outbox             → bus
    dead_letters    dead.*             → dead letters of processes that may not write to the pool
    reaper          expired leases     → new attempts
    run_end         end conditions     → filtered(run_ended), ended runs
    readers         long transactions  → ended sessions of logins that only read
    rebuild         missing streams    → work.*, policy.* again, from Postgres
    stall_detector  unfinished work    → alarms that name the blocking process (pool.backlog, pool.stall_causes)

`roles.complete` advances a reported attempt; the consumers of `roles.ingest` and the reaper call it. Once each rollout of a group has ended,
`roles.conclude` makes the group ready, scored, filtered or dead (scheduling.completion); `complete`, `ingest` and `retry_policy` call it.
It gets the group's rewards from `roles.reward_threads`, which calls `roles.reward` (formulas: rewards).

The other processes: `orchestrator.gateway.server` (gateway; it records steps in a journal), `orchestrator.runner.rollout_runner` and
`.verify_runner` (runners), `trainer.loop` (trainer), `trainer.serving` (embedded rollout server). They meet only at the bus and the data pool. Each
may be killed at any instruction. Two orchestrators on one run are safe.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.nats import NatsBus
from orchestrator.deploy.preflight import check_config
from orchestrator.pool.engine import CANNOT_CONNECT
from orchestrator.pool.heartbeats import send_heartbeats
from orchestrator.pool.opened import opened
from orchestrator.pool.reader_login import keep_login
from orchestrator.pool.reader_rights import tighten
from orchestrator.pool.runs import StoredRun, ensure_run, keep_process_config
from orchestrator.pool.transact import transact
from orchestrator.roles.blobs import answer_missing, store_blobs
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dead_letters import store_dead_letters
from orchestrator.roles.dispatcher import dispatcher
from orchestrator.roles.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.roles.intake import Intake
from orchestrator.roles.readers import end_long_readers
from orchestrator.roles.reaper import reaper
from orchestrator.roles.rebuild import REBUILT, rebuild
from orchestrator.roles.relay import relay
from orchestrator.roles.run_end import run_end
from orchestrator.roles.stall_detector import StallDetector
from orchestrator.runtime.liveness import restartable
from orchestrator.runtime.log import bind, get
from orchestrator.runtime.plugins import names
from orchestrator.settings.config import Config, effective, ignored
from orchestrator.settings.newest_start import kept_values
from orchestrator.settings.timeouts import timeouts

log = get(__name__)


@asynccontextmanager
async def open_context(config: Config) -> AsyncIterator[OrchestratorContext]:
    """The orchestrator's context on the configured services. The run and the streams exist."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            opened(
                config.services.database_url,
                size=8,
                name="penstock-orchestrator",
                patience_s=timeouts().pool_start_s,
            )
        )

        async def begin(connection: AsyncConnection) -> tuple[StoredRun, list[str]]:
            return await ensure_run(connection, config.run.name, config.to_json()), await tighten(connection)

        run, readers_may = await transact(engine, begin, at="run.create")
        if readers_may:
            log.info("database.readers", may=readers_may, advice="ops/guides/security.md")
        try:
            await keep_login(config.services.database_url)
        except CANNOT_CONNECT as error:
            log.warning("database.reader_login", error=str(error))
        if changed := ignored(run.config, config):
            log.warning("run.configuration_kept", changed=changed, advice="a run keeps what it began with")
        config = effective(run.config, config)
        bus = await stack.enter_async_context(NatsBus.connect(config.services.nats_url))
        stack.enter_context(bind(run=run.name))
        yield OrchestratorContext(run_id=run.run_id, run=run.name, config=config, engine=engine, bus=bus)


async def keep_own_values(context: OrchestratorContext) -> None:
    """Store the process keys of an orchestrator that starts: other runs' orchestrators and dashboards go by them."""
    kept = kept_values(context.config)
    await transact(
        context.engine,
        lambda connection: keep_process_config(connection, context.run_id, kept),
        at="run.create",
    )


async def orchestrate(config: Config) -> None:
    """Run every role until cancelled."""
    known_scaffolds = names("scaffolds")
    check_config(config, known_scaffolds)
    async with open_context(config) as context:
        await keep_own_values(context)

        async def on_stream_new(stream: str) -> None:
            await rebuild(context, stream)

        context.bus.on_stream_new(on_stream_new)
        await context.bus.ensure_streams()
        # A stream that was wiped and recreated while this process was away looks normal.
        for stream in REBUILT:
            await rebuild(context, stream)
        log.info("orchestrator.ready", run_id=context.run_id)
        roles: dict[str, Callable[[], Awaitable[None]]] = {
            "intake": Intake(context, known_scaffolds).run,
            "blobs": partial(store_blobs, context),
            "missing_blobs": partial(answer_missing, context),
            "dispatcher": partial(dispatcher, context),
            "steps": partial(ingest_steps, context),
            "results": partial(ingest_results, context),
            "verdicts": partial(ingest_verdicts, context),
            "dead_letters": partial(store_dead_letters, context),
            "relay": partial(relay, context),
            "reaper": partial(reaper, context),
            "run_end": partial(run_end, context),
            "stall_detector": StallDetector(context).run,
            "readers": partial(end_long_readers, context),
        }
        async with send_heartbeats(context.engine, context.run_id), anyio.create_task_group() as tasks:
            for name, role in roles.items():  # a restarted role repeats what was cancelled halfway
                tasks.start_soon(restartable, name, role)
