"""Step rows: the real ingest path against a bare COPY of the same bytes, in turns so that both see the same machine.

Ours is everything from the message to the commit: JSON, base64, digests, the share lock on the rollout, steps, messages and prompts,
64 per transaction. COPY writes the four binary columns of the same rows into a table without index or checks, 64 per transaction.
"""

from collections.abc import Sequence

import numpy as np
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ops.lab.benchmarks.pool.rig import Rig, Spent
from ops.lab.benchmarks.targets import (
    BenchmarkTarget,
    Report,
    at_least,
    at_most,
)
from orchestrator.contracts.events import StepRecorded, decode, encode
from orchestrator.contracts.ids import (
    b64,
    chain_sha,
    ids_to_bytes,
    logprobs_to_bytes,
    prompt_sha,
    row_sha,
    unb64,
)
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.spans import VersionSpan
from orchestrator.contracts.states import StepKind
from orchestrator.pool.engine import open_engine
from orchestrator.pool.ingest import Fate, decode_step, ingest
from orchestrator.pool.steps import canonical
from orchestrator.pool.transact import transact

STATE, ACTION = 768, 256  # tokens of a row
BATCH = 64  # as the orchestrator consumes them
STEPS_PER_ROLLOUT = 8
VOCAB = 151_643
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
TARGET_ROWS_S, TARGET_MS, MAX_OVER_COPY = 3000.0, 0.3, 10.0
TABLES = ("steps", "messages", "prompts")
_BARE = (
    "CREATE TABLE bare (state bytea, action bytea, logprobs bytea, sha bytea)",
    "ALTER TABLE bare ALTER state SET STORAGE EXTERNAL, ALTER action SET STORAGE EXTERNAL, ALTER logprobs SET STORAGE EXTERNAL",
)


def messages_of(run: str, rollouts: Sequence[int]) -> list[bytes]:
    """The bodies of StepRecorded messages: per rollout a root and continuations, each with STATE new tokens and ACTION sampled ones."""
    rng = np.random.default_rng(0)
    bodies: list[bytes] = []
    canonical_sampling = canonical(SAMPLING)
    for rollout in rollouts:
        parent_chain, full = b"", 0
        for idx in range(STEPS_PER_ROLLOUT):
            fresh = ids_to_bytes((rng.zipf(1.3, STATE) % VOCAB).astype(np.int32))
            action = ids_to_bytes((rng.zipf(1.3, ACTION) % VOCAB).astype(np.int32))
            logprobs = logprobs_to_bytes(-rng.exponential(0.5, ACTION).astype(np.float32))
            prompt = fresh if idx == 0 else None
            delta = b"" if prompt is not None else fresh
            keep_len = STATE if prompt is not None else full
            chain = chain_sha(
                prompt_sha(prompt) if prompt is not None else parent_chain, keep_len, delta, action
            )
            state = keep_len + len(delta) // 4
            event = StepRecorded(
                run=run, rollout=rollout, attempt=1, epoch=1, idx=idx,
                kind=StepKind.ROOT if prompt is not None else StepKind.CONTINUES,
                parent=idx - 1 if idx else None, root=0, keep_len=keep_len, state_len=state, full_len=state + ACTION,
                delta=b64(delta), action=b64(action), logprobs=b64(logprobs), spans=[VersionSpan(3, 0, ACTION)],
                chain_sha=chain.hex(),
                row_sha=row_sha(chain, logprobs, [3, 0, ACTION], canonical_sampling).hex(),
                sampling=SAMPLING, finish=Finish.STOP, parse=ParseStatus.OK,
                prompt=b64(prompt) if prompt is not None else None,
                prompt_sha=prompt_sha(prompt).hex() if prompt is not None else None,
                appended=[{"role": "tool", "content": "x" * 200}], reply={"role": "assistant", "content": "y" * 200},
            )  # fmt: skip
            bodies.append(encode(event))
            parent_chain, full = chain, state + ACTION
    return bodies


async def make_rollouts(rig: Rig, run_id: int, count: int) -> list[int]:
    """Running rollouts at their first epoch."""
    async with rig.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO tasks (run_id, sha, name, domain, settings, body) VALUES (:run, 'x', 'x', 'general', '{}', '{}')"
            ),
            {"run": run_id},
        )
        await connection.execute(
            text(
                "INSERT INTO groups (run_id, submission, task_id, domain, scaffold, size, state) "
                "SELECT :run, 'ingest', max(task_id), 'general', 'shell', 32767, 'dispatched' FROM tasks WHERE run_id = :run"
            ),
            {"run": run_id},
        )
        rows = await connection.execute(
            text(
                "INSERT INTO rollouts (run_id, group_id, member, seed, state, lease_epoch) "
                "SELECT :run, group_id, n, n, 'running', 1 FROM groups, generate_series(1, :count) n "
                "WHERE run_id = :run AND submission = 'ingest' RETURNING rollout_id"
            ),
            {"run": run_id, "count": count},
        )
        return sorted(row.rollout_id for row in rows)


async def ours(engine: AsyncEngine, run_id: int, bodies: Sequence[bytes]) -> None:
    """Process one batch of messages as the orchestrator does."""

    async def work(connection: AsyncConnection) -> None:
        arrived = [decode_step(decode(body, StepRecorded.schema(), StepRecorded)) for body in bodies]
        done = await ingest(connection, run_id, arrived)
        assert set(done.fates) == {Fate.NEW}

    await transact(engine, work, at="steps.commit")


async def copy(connection: AsyncConnection, rows: Sequence[tuple[bytes, ...]]) -> None:
    """The bound: the same bytes and a commit."""
    # SQLAlchemy starts its transactions lazily, and COPY bypasses it.
    await connection.execute(text("SELECT 1"))
    driver = (await connection.get_raw_connection()).driver_connection
    assert driver is not None and driver.is_in_transaction()
    await driver.copy_records_to_table("bare", records=rows)
    await connection.commit()


def _binary(event: StepRecorded) -> tuple[bytes, ...]:
    """The minimum to store of a step: its new ids, its logprobs, its digest."""
    fresh = event.delta if event.prompt is None else event.prompt
    return unb64(fresh), unb64(event.action), unb64(event.logprobs), bytes.fromhex(event.row_sha)


async def measure(rig: Rig, rows: int, table: Report) -> list[BenchmarkTarget]:
    """Rows per second and per CPU-second, milliseconds per row beyond COPY, bytes per token."""
    run, _ = await rig.make_run("ingest")
    rollouts = await make_rollouts(rig, run.run_id, rows // STEPS_PER_ROLLOUT)
    bodies = messages_of(run.name, rollouts)
    raw = [_binary(decode(body, StepRecorded.schema(), StepRecorded)) for body in bodies]
    for statement in _BARE:
        await rig.alone(statement)
    product, bare, before = Spent(), Spent(), await _sizes(rig)
    async with (
        open_engine(rig.url, size=1, name="penstock-bench-ingest") as engine,
        rig.engine.connect() as straight,
    ):
        async with engine.connect() as session:
            product_pid = int(await session.scalar(text("SELECT pg_backend_pid()")) or 0)
        copy_pid = int(await straight.scalar(text("SELECT pg_backend_pid()")) or 0)
        await straight.rollback()
        batches = range(0, len(bodies) - BATCH + 1, BATCH)
        for at in batches:
            warm = at < len(bodies) // 10  # caches and statements
            with (Spent() if warm else product).charged(BATCH, product_pid):
                await ours(engine, run.run_id, bodies[at : at + BATCH])
            with (Spent() if warm else bare).charged(BATCH, copy_pid):
                await copy(straight, raw[at : at + BATCH])
    table.add_row(
        "a step row, ours",
        product.line(),
        f"{product.rows} rows of {STATE} + {ACTION} tokens, {BATCH} to a commit",
    )
    table.add_row("a step row, bare COPY", bare.line(), "the same bytes, no index, no checks")
    tokens = len(batches) * BATCH * (STATE + ACTION)
    for name, (heap, index) in (await _sizes(rig)).items():
        heap, index = heap - before[name][0], index - before[name][1]
        table.add_row(
            f"bytes per token, {name}",
            f"{heap / tokens:.2f} in the table, {index / tokens:.3f} in indexes",
            "5.00 is the least: 4 for an id, and 4 for the logprob of each 4th token"
            if name == "steps"
            else "",
        )
    extra = product.wall_s / product.rows - bare.wall_s / bare.rows
    extra_cpu = (product.ours_s + product.server_s) / product.rows - (bare.ours_s + bare.server_s) / bare.rows
    return [
        at_least("step_rows_per_s", product.rows / product.wall_s, "1/s", TARGET_ROWS_S),
        at_least(
            "step_rows_per_cpu_s", product.rows / product.ours_s, "1/CPU-s of the process", TARGET_ROWS_S
        ),
        at_most("durability_ms_per_row", 1000 * extra, "ms", TARGET_MS),
        at_most("durability_cpu_ms_per_row", 1000 * extra_cpu, "CPU-ms here and in the server", TARGET_MS),
        at_most("ours_over_copy", product.wall_s / bare.wall_s, "ratio", MAX_OVER_COPY),
    ]


async def _sizes(rig: Rig) -> dict[str, tuple[float, float]]:
    """Bytes of tables (with TOAST) and of their indexes, partitions together."""
    query = """SELECT coalesce(sum({0}(t)), 0) FROM (SELECT CAST(:name AS regclass) UNION ALL
            SELECT inhrelid FROM pg_inherits WHERE inhparent = CAST(:name AS regclass)) tables(t)"""
    return {
        name: (
            await rig.value(query.format("pg_table_size"), name=name),
            await rig.value(query.format("pg_indexes_size"), name=name),
        )
        for name in TABLES
    }
