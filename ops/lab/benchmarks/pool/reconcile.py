"""Reconciling: NATS is killed and its store deleted while many items are open. Measured until all of them are on their stream again."""

import time

import anyio
from sqlalchemy import text

from ops.lab.benchmarks.pool.rig import Rig
from ops.lab.benchmarks.targets import BenchmarkTarget, Report, at_most
from orchestrator.bus.nats import NatsBus
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.rebuild import rebuild
from orchestrator.roles.relay import relay
from orchestrator.settings.config import Config

TARGET_S = 30.0
MEMBERS = 4
PATIENCE_S = 900.0
# Half of the rollouts wait for a runner, half for a verifier runner.
_OPEN = (
    "INSERT INTO tasks (run_id, sha, name, domain, settings, body) VALUES ({run}, 'x', 'x', 'general', '{{}}', '{{}}')",
    "INSERT INTO groups (run_id, submission, task_id, domain, scaffold, size, state, seq) "
    "SELECT {run}, 's' || n, t.task_id, 'general', 'shell', {members}, 'dispatched', n FROM generate_series(0, {groups} - 1) n, "
    "(SELECT task_id FROM tasks WHERE run_id = {run}) t",
    "INSERT INTO rollouts (run_id, group_id, member, seed, state, lease_epoch) "
    "SELECT {run}, g.group_id, m, m, CASE WHEN m % 2 = 0 THEN 'queued' ELSE 'finished' END, 1 FROM groups g, generate_series(0, {members} - 1) m "
    "WHERE g.run_id = {run}",
)


async def measure(rig: Rig, items: int, table: Report) -> list[BenchmarkTarget]:
    """Seconds from the moment when NATS is up again, empty."""
    run, config = await rig.make_run("open")
    for statement in _OPEN:
        async with rig.engine.begin() as connection:
            await connection.exec_driver_sql(
                statement.format(run=run.run_id, groups=items // MEMBERS, members=MEMBERS)
            )
    await rig.alone("ANALYZE")
    async with NatsBus.connect(rig.nats.url, name="bench") as bus, anyio.create_task_group() as tasks:
        context = OrchestratorContext(
            run_id=run.run_id,
            run=run.name,
            config=Config.from_json(config.to_json()),
            engine=rig.engine,
            bus=bus,
        )
        await bus.ensure_streams()

        rebuild_s: list[float] = []

        async def rebuild_stream(stream: str) -> None:
            before = time.perf_counter()
            await rebuild(context, stream)
            if stream == "WORK":
                rebuild_s.append(time.perf_counter() - before)

        bus.on_stream_new(rebuild_stream)
        tasks.start_soon(relay, context)
        await rig.wipe_nats()
        started, cpu = time.perf_counter(), time.process_time()
        while not rebuild_s or await rig.value(
            "SELECT count(*) FROM (SELECT 1 FROM outbox WHERE run_id = :run LIMIT 1) o", run=run.run_id
        ):
            if time.perf_counter() - started > PATIENCE_S:
                raise RuntimeError(f"the streams were not whole again after {PATIENCE_S:g} s")
            await anyio.sleep(0.05)
        elapsed, used = time.perf_counter() - started, time.process_time() - cpu
        stored = await _stored(rig)
        tasks.cancel_scope.cancel()
    if stored != items:
        raise RuntimeError(f"{stored} messages are on WORK, not {items}")
    async with rig.engine.begin() as connection:
        await connection.execute(
            text("UPDATE rollouts SET state = 'lost', failure_class = 'cancelled' WHERE run_id = :run"),
            {"run": run.run_id},
        )
    table.add_row(
        "reconcile",
        f"{elapsed:.1f} s, {used:.1f} CPU-s here",
        f"{items:,} items open; {rebuild_s[0]:.1f} s of it to owe them",
    )
    return [at_most("reconcile_s", elapsed, "s", TARGET_S)]


async def _stored(rig: Rig) -> int:
    """Messages on WORK."""
    import nats

    client = await nats.connect(rig.nats.url)
    try:
        return int((await client.jetstream().stream_info("WORK")).state.messages)
    finally:
        await client.close()
