"""From dispatch to start: the orchestrator's roles, NATS and a runner's assignments on the filled database. The rollouts do no work.

A group is dispatched (`groups.dispatched`), its assignments go through outbox, relay and stream to the runner, which leases the rollout
(`attempts.started`, committed). Both timestamps are the database's. Groups come one by one, a little apart, as places in the queue become free.
"""

import secrets
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import Row, text

from ops.lab.benchmarks.pool.filling import RUN
from ops.lab.benchmarks.pool.rig import Rig
from ops.lab.benchmarks.targets import (
    BenchmarkTarget,
    Report,
    at_most,
    quantile,
)
from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.events import RolloutAssigned, RolloutFinished, encode
from orchestrator.contracts.states import FailureClass, Purpose
from orchestrator.pool.leases import Lease
from orchestrator.pool.runs import get_run
from orchestrator.pool.submissions import NewGroup, accept
from orchestrator.pool.transact import transact
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.dispatcher import dispatcher
from orchestrator.roles.ingest import ingest_results
from orchestrator.roles.relay import relay
from orchestrator.runner.assignments import Assignments
from orchestrator.runner.worker import WorkerSettings, open_worker
from orchestrator.settings.config import Config

TARGET_MS = 50.0
APART_S = 0.05
PATIENCE_S = 600.0
_WAITED = """SELECT extract(epoch FROM min(a.started) - g.dispatched) * 1000 AS first,
                    extract(epoch FROM max(a.started) - g.dispatched) * 1000 AS last
               FROM groups g JOIN rollouts r ON r.group_id = g.group_id LEFT JOIN attempts a ON a.rollout_id = r.rollout_id
              WHERE g.run_id = :run AND g.submission LIKE 'start-%'
              GROUP BY g.group_id HAVING count(*) = count(a.started)"""


async def measure(rig: Rig, starts: int, table: Report) -> list[BenchmarkTarget]:
    """p50 and p95 from the dispatch of a group to the start of its first and last attempt."""
    async with rig.engine.connect() as connection:
        run = await get_run(connection, RUN)
    config = Config.from_json(run.config)

    async def work(lease: Lease) -> Outgoing:
        return _cancelled(run.name, lease)

    with tempfile.TemporaryDirectory(prefix="penstock-bench-journal-") as journal:
        settings = WorkerSettings(
            run=run.name,
            database_url=rig.url,
            nats_url=rig.nats.url,
            journal=Path(journal),
            provider="local",
            slots=64,
            owner="bench",
        )
        async with (
            NatsBus.connect(rig.nats.url, name="bench") as bus,
            open_worker(settings, "penstock-bench-runner") as worker,
            anyio.create_task_group() as tasks,
        ):
            context = OrchestratorContext(
                run_id=run.run_id, run=run.name, config=config, engine=rig.engine, bus=bus
            )
            await bus.ensure_streams()
            for role in (dispatcher, relay, ingest_results):
                tasks.start_soon(partial(role, context))
            assignments = Assignments(worker, RolloutAssigned, work)
            tasks.start_soon(assignments.serve, [subjects.consume_work_rollout(run.name)])
            for number in range(starts):
                new = _group(number)
                await transact(rig.engine, lambda c, new=new: accept(c, run.run_id, new), at="intake.commit")  # type: ignore[misc]
                context.signals.work.set()
                await anyio.sleep(APART_S)
            rows = await _all_started(rig, run.run_id, starts)
            tasks.cancel_scope.cancel()
    first, last = [float(row.first) for row in rows], [float(row.last) for row in rows]
    for name, values in (("dispatch to the first start", first), ("dispatch to the last of 2 starts", last)):
        table.add_row(
            name,
            f"p50 {quantile(values, 0.5):.1f} ms, p95 {quantile(values, 0.95):.1f} ms",
            f"{starts} groups, one every {1000 * APART_S:g} ms",
        )
    return [at_most("dispatch_to_start_p50", quantile(last, 0.5), "ms", TARGET_MS)]


def _cancelled(run: str, lease: Lease) -> Outgoing:
    """The result of an attempt that did nothing."""
    done = RolloutFinished(
        run=run,
        rollout=lease.rollout_id,
        attempt=lease.attempt,
        epoch=lease.epoch,
        failure_class=FailureClass.CANCELLED,
        reason="a measurement",
        steps=0,
        last_idx=-1,
        digest="",
        agent_s=0.0,
    )
    return Outgoing(
        subject=subjects.results_rollout(run),
        msg_id=f"{lease.rollout_id}:{lease.epoch}:0:result",
        schema=RolloutFinished.schema(),
        body=encode(done),
    )


def _group(number: int) -> NewGroup:
    return NewGroup(
        submission=f"start-{number}",
        task_sha=secrets.token_bytes(32),
        task_name="nothing",
        domain="general",
        settings={},
        body={},
        purpose=Purpose.TRAIN,
        scaffold="shell",
        size=2,
        seed=number,
    )


async def _all_started(rig: Rig, run_id: int, starts: int) -> Sequence[Row[Any]]:
    """The waits of all groups, once each has started; RuntimeError after PATIENCE_S."""
    began = time.perf_counter()
    while True:
        async with rig.engine.connect() as connection:
            rows = (await connection.execute(text(_WAITED), {"run": run_id})).all()
        if len(rows) == starts:
            return rows
        if time.perf_counter() - began > PATIENCE_S:
            raise RuntimeError(
                f"{starts - len(rows)} of {starts} groups were not started within {PATIENCE_S:g} s"
            )
        await anyio.sleep(0.05)
