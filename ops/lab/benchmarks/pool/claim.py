"""The trainer's claim: the transaction that takes a batch, in a database with a long history."""

import time
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from ops.lab.benchmarks.pool.filling import (
    BATCH_GROUPS,
    CAPACITY,
    QUEUE,
    RUN,
)
from ops.lab.benchmarks.pool.rig import Rig, Spent
from ops.lab.benchmarks.targets import (
    BenchmarkTarget,
    Report,
    at_most,
    quantile,
)
from orchestrator.contracts.states import BatchState
from orchestrator.pool import batches
from orchestrator.pool.batches import LiveBatch, NewVersion
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.policy_versions import newest_version, next_version, progress
from orchestrator.pool.runs import first_dispatch_age, get_run
from orchestrator.pool.transact import transact
from orchestrator.pool.transitions import lock_run
from orchestrator.scheduling.queue_policies import queue_policy

TARGET_MS = 50.0


@dataclass(slots=True, kw_only=True)
class Times:
    """Milliseconds of every transaction."""

    claims: list[float]
    again: list[float]
    reads: list[float]
    commits: list[float]


async def measure(rig: Rig, claims: int, table: Report) -> list[BenchmarkTarget]:
    """p50 and p95 of a claim that closes a batch; also of the repeated claim, the read of the batch, and its commit."""
    times, spent = Times(claims=[], again=[], reads=[], commits=[]), Spent()
    policy = queue_policy("windowed", CAPACITY, float(str(QUEUE["window_fraction"])))
    async with open_engine(rig.url, Role.TRAINER, size=1, name="penstock-bench-trainer") as engine:
        async with engine.connect() as connection:
            run = await get_run(connection, RUN)
            pid = int(await connection.scalar(text("SELECT pg_backend_pid()")) or 0)

        async def claim(connection: AsyncConnection) -> LiveBatch:  # as trainer.phases.Trainer.claim
            await lock_run(connection, run.run_id)
            assert await newest_version(connection, run.run_id) is not None
            await progress(connection, run.run_id)
            await first_dispatch_age(connection, run.run_id)
            batch = await batches.take(connection, run.run_id, policy, BATCH_GROUPS, BATCH_GROUPS // 2)
            assert batch is not None and batch.state is BatchState.CLOSED
            return batch

        for _ in range(claims):
            started = time.perf_counter()
            with spent.charged(1, pid):
                batch = await transact(engine, claim, at="trainer.claim")
            times.claims.append(1000 * (time.perf_counter() - started))
            started = time.perf_counter()
            reclaimed = await transact(engine, claim, at="trainer.claim")
            times.again.append(1000 * (time.perf_counter() - started))
            assert reclaimed.digest == batch.digest
            started = time.perf_counter()
            rollouts = await transact(
                engine,
                lambda c, closed=batch.batch_id: batches.contents(c, closed),  # type: ignore[misc]
                at="trainer.read",
            )
            times.reads.append(1000 * (time.perf_counter() - started))
            assert len({rollout.group_id for rollout in rollouts}) == BATCH_GROUPS

            async def commit(connection: AsyncConnection, closed: LiveBatch = batch) -> None:
                version = await next_version(connection, run.run_id)
                new = NewVersion(version=version, parent=version - 1, path="/v", manifest_sha="00")
                assert await batches.commit(
                    connection,
                    run.run_id,
                    run.name,
                    batch=closed,
                    new=new,
                    metrics=[{"loss": 0.0}],
                    subject=f"policy.{run.name}",
                )

            started = time.perf_counter()
            await transact(engine, commit, at="trainer.commit")
            times.commits.append(1000 * (time.perf_counter() - started))
    _show(table, times)
    table.add_row("a claim's share of it", spent.line(), "the mean")
    cpu_ms = 1000 * (spent.ours_s + spent.server_s) / spent.rows
    return [
        at_most("claim_p95", quantile(times.claims, 0.95), "ms", TARGET_MS),
        at_most("claim_cpu", cpu_ms, "CPU-ms", TARGET_MS),
    ]


def _show(table: Report, times: Times) -> None:
    for name, values in (
        ("claim of a batch", times.claims),
        ("the same claim again", times.again),
        ("reading what it trains", times.reads),
        ("its commit", times.commits),
    ):
        table.add_row(
            name,
            f"p50 {quantile(values, 0.5):.1f} ms, p95 {quantile(values, 0.95):.1f} ms",
            f"{len(values)} batches of {BATCH_GROUPS} groups",
        )
