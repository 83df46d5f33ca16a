"""The map of a running Penstock, and the composition root of the orchestrator process.

    users ──tasks.*──▶ NATS ──▶ orchestrator ──▶ Postgres = the data pool = the only truth
                        ▲  │                          ▲            │ windowed-FIFO batches
                steps.* │  │ work.*                   │            ▼
    gateway ◀── runner ─┴──┴── verifier runner ───────┘         trainer ──▶ policy.* + weights in a directory
       │                                                           │
       └──▶ rollout servers ◀──────────── the gateway syncs new versions

One event loop, one task group, one role per file in `orchestrator.flow`:

    intake      tasks.*            → groups, rollouts, submissions      (pool.submissions)
    dispatcher  accepted groups    → seq, assignments                   (scheduling.admission, pool.dispatch)
    ingest      steps.*, results.* → steps, results, verdicts           (pool.steps, pool.results)
    complete    terminal rollouts  → rewards; ready, scored, filtered   (rewards, scheduling.completion)
    relay       outbox             → bus
    letters     dead.*             → dead letters of those who may not write them
    reaper      expired leases     → new attempts
    ender       end conditions     → filtered(run_ended), ended runs
    rebuild     missing streams    → work.*, policy.* again, from Postgres
    overseer    unfinished work    → alarms that name who holds it up   (pool.stages, pool.culprits)

The other processes: `orchestrator.gateway.server` (gateway), `orchestrator.flow.rollout_runner` and `.verify_runner` (runners),
`trainer.loop` (trainer), `trainer.serving` (embedded rollout server). All meet only at the bus and the data pool; any may be killed at
any instruction. Two orchestrators on one run are safe.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio

from orchestrator.bus.nats import NatsBus
from orchestrator.clock import clock
from orchestrator.config import Config, as_kept, differences
from orchestrator.flow.context import Flow
from orchestrator.flow.dispatcher import dispatcher
from orchestrator.flow.ender import ender
from orchestrator.flow.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.flow.intake import Intake
from orchestrator.flow.letters import keep_letters
from orchestrator.flow.overseer import Overseer
from orchestrator.flow.reaper import reaper
from orchestrator.flow.rebuild import REBUILT, rebuild
from orchestrator.flow.relay import relay
from orchestrator.log import bind, get
from orchestrator.plugins import names
from orchestrator.pool.engine import check_revision, open_engine
from orchestrator.pool.presence import announced
from orchestrator.pool.runs import ensure_run
from orchestrator.pool.transact import transact
from orchestrator.preflight import check_config
from orchestrator.progress import restartable

log = get(__name__)


@asynccontextmanager
async def open_flow(config: Config) -> AsyncIterator[Flow]:
    """The orchestrator's context on configured services: the run exists, the streams exist."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            open_engine(
                config.services.database_url, name="penstock-orchestrator", patience_s=clock().pool_start_s
            )
        )
        async with engine.connect() as connection:
            await check_revision(connection)
        run = await transact(
            engine,
            lambda connection: ensure_run(connection, config.run.name, config.to_json()),
            at="run.create",
        )
        kept = as_kept(run.config, config)
        if changed := differences(kept, config):
            log.warning("run.configuration_kept", changed=changed, advice="a run keeps what it began with")
        config = kept
        bus = await stack.enter_async_context(NatsBus.connect(config.services.nats_url))
        stack.enter_context(bind(run=run.name))
        yield Flow(run.run_id, run.name, config, engine, bus)


async def orchestrate(config: Config) -> None:
    """Run every role until cancelled."""
    known_scaffolds = names("scaffolds")
    check_config(config, known_scaffolds)
    async with open_flow(config) as flow:

        async def on_stream_new(stream: str) -> None:
            await rebuild(flow, stream)

        flow.bus.on_stream_new(on_stream_new)
        await flow.bus.ensure_streams()
        for stream in REBUILT:  # one that was wiped and made anew while we were away looks normal
            await rebuild(flow, stream)
        log.info("orchestrator.ready", run_id=flow.run_id)
        roles: dict[str, Callable[[], Awaitable[None]]] = {
            "intake": Intake(
                flow, list(dict.fromkeys((*known_scaffolds, *flow.config.rollout.scaffolds)))
            ).run,
            "dispatcher": partial(dispatcher, flow),
            "steps": partial(ingest_steps, flow),
            "results": partial(ingest_results, flow),
            "verdicts": partial(ingest_verdicts, flow),
            "letters": partial(keep_letters, flow),
            "relay": partial(relay, flow),
            "reaper": partial(reaper, flow),
            "ender": partial(ender, flow),
            "overseer": Overseer(flow).run,
        }
        async with announced(flow.engine, flow.run_id), anyio.create_task_group() as tasks:
            for name, role in roles.items():  # what is cancelled in the middle is done again
                tasks.start_soon(restartable, name, role)
