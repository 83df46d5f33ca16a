"""State changes: how much they make the hot tables grow, and how many updates are HOT (touch no index)."""

import time
from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from ops.lab.benchmarks.pool.ingest import make_rollouts
from ops.lab.benchmarks.pool.rig import Rig
from ops.lab.benchmarks.targets import (
    BenchmarkTarget,
    Report,
    at_least,
    at_most,
)
from orchestrator.bus import subjects
from orchestrator.contracts.events import RolloutAssigned
from orchestrator.contracts.states import RolloutState
from orchestrator.pool import leases, transitions
from orchestrator.pool.outbox import enqueue_all, settle, take_due
from orchestrator.pool.transact import transact

IN_FLIGHT = 1024  # rollouts
PAGE = 64
BEATS = 3  # renewals of a lease: 30 s of an attempt with the usual settings
TABLES = ("rollouts", "outbox")
MIN_HOT = 0.4
MAX_BYTES = 64.0  # per change; a row version with its index entries that is never reclaimed takes 110

# The life of an attempt, repeated: leased, renewed, taken back under the next epoch. The product's own statements, but for 64 rollouts at a time.
_LEASED = """UPDATE rollouts SET state = 'running', changed = clock_timestamp(), lease_owner = 'bench', lease_until = now() + interval '1 minute'
              WHERE rollout_id = ANY(:ids) AND state = 'queued'"""
_BACK = """UPDATE rollouts SET state = 'queued', changed = clock_timestamp(), lease_owner = NULL, lease_until = NULL, lease_epoch = lease_epoch + 1
            WHERE rollout_id = ANY(:ids) AND state = 'running'"""
_HISTORY = """INSERT INTO transitions (run_id, kind, entity_id, from_state, to_state, epoch)
              SELECT :run, 'rollout', id, CAST(:before AS text), CAST(:after AS text), 1 FROM unnest(CAST(:ids AS bigint[])) id"""


async def measure(rig: Rig, changes: int, table: Report) -> list[BenchmarkTarget]:
    """Share of HOT updates, and bytes that table and indexes grew by per state change."""
    run, _ = await rig.make_run("changes")
    ids = await make_rollouts(rig, run.run_id, IN_FLIGHT)
    async with rig.engine.begin() as connection:
        await connection.execute(text(_BACK), {"ids": ids})
    await rig.alone("VACUUM ANALYZE rollouts")
    before = {name: await _stats(rig, name) for name in TABLES}
    started, done = time.perf_counter(), 0
    while done < changes:
        for at in range(0, len(ids), PAGE):
            await _life(rig, run.run_id, ids[at : at + PAGE])
            done += 2 * PAGE
    elapsed = time.perf_counter() - started
    bars = []
    for name in TABLES:
        updates, hot, size = await _stats(rig, name)
        updates, hot = updates - before[name][0], hot - before[name][1]
        table.add_row(
            f"{name} after {done:,} changes",
            f"{size / 2**20:.1f} MiB, before {before[name][2] / 2**20:.1f}; {updates:,.0f} updates",
            f"{hot / max(1.0, updates):.0%} of them HOT",
        )
        if name == "rollouts":
            bars.append(at_least("rollouts_hot_share", hot / updates, "share of the updates", MIN_HOT))
            bars.append(
                at_most(
                    "rollouts_growth_per_change",
                    (size - before[name][2]) / done,
                    "bytes, indexes too",
                    MAX_BYTES,
                )
            )
    table.add_row(
        "state changes",
        f"{done / elapsed:.0f}/s",
        f"{elapsed:.0f} s, each with {BEATS // 2 + 1} renewals and an outbox row with it",
    )
    return bars


async def _life(rig: Rig, run_id: int, ids: Sequence[int]) -> None:
    events = [
        (subjects.work_rollout("changes"), RolloutAssigned(run="changes", rollout=id, attempt=1, epoch=1))
        for id in ids
    ]
    epochs: dict[int, int] = {}

    async def leased(connection: AsyncConnection) -> None:
        await transitions.lock_run(connection, run_id)
        await connection.execute(text(_LEASED), {"ids": ids})
        await connection.execute(
            text(_HISTORY),
            {"run": run_id, "ids": ids, "before": RolloutState.QUEUED, "after": RolloutState.RUNNING},
        )
        rows = await connection.execute(
            text("SELECT rollout_id, lease_epoch FROM rollouts WHERE rollout_id = ANY(:ids)"), {"ids": ids}
        )
        epochs.update({row.rollout_id: row.lease_epoch for row in rows})

    async def requeue(connection: AsyncConnection) -> None:
        await transitions.lock_run(connection, run_id)
        await connection.execute(text(_BACK), {"ids": ids})
        await connection.execute(
            text(_HISTORY),
            {"run": run_id, "ids": ids, "before": RolloutState.RUNNING, "after": RolloutState.QUEUED},
        )
        await enqueue_all(connection, run_id, events)

    await transact(rig.engine, leased, at="lease.taken")
    for _ in range(BEATS):
        renewed = await transact(
            rig.engine, lambda c: leases.heartbeat(c, run_id, "bench", epochs, 60.0), at="lease.renewed"
        )
        assert len(renewed) == len(ids)
    await transact(rig.engine, requeue, at="reaper.commit")
    taken = await transact(rig.engine, lambda c: take_due(c, run_id, PAGE, taken_s=10.0), at="relay.take")
    await transact(rig.engine, lambda c: settle(c, [row.outbox_id for row in taken]), at="relay.commit")


async def _stats(rig: Rig, name: str) -> tuple[float, float, float]:
    """Updates, HOT updates, and bytes."""
    for _ in range(8):  # a session reports its statistics when it ends, or a second later
        await rig.alone("SELECT pg_stat_force_next_flush()")
    await rig.engine.dispose()
    found = "FROM pg_stat_user_tables WHERE relname = :name"
    return (
        await rig.value(f"SELECT n_tup_upd {found}", name=name),
        await rig.value(f"SELECT n_tup_hot_upd {found}", name=name),
        await rig.value(f"SELECT pg_total_relation_size(relid) {found}", name=name),
    )
