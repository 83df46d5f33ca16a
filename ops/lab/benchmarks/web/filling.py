"""Rows of a long run. run.sql: groups in four domains, conversations with tools, rewards, batches with their train steps, and one rollout whose
last state holds 200,000 tokens. evaluations.sql: a suite of held-out tasks on every 20th version. Digests are not real; nothing here is audited."""

import time
from collections.abc import Mapping
from pathlib import Path
from string import Template

from sqlalchemy import text

from ops.lab.benchmarks.pool.rig import Rig
from ops.lab.benchmarks.targets import Report

RUN = "history"
SQL = [Path(__file__).with_name(name) for name in ("run.sql", "evaluations.sql")]
BATCH_GROUPS, MEMBERS, STEPS = 32, 2, 4
OPEN = 40  # groups in the queue: some ready, some under way
LONG_STEPS, LONG_DELTA, LONG_ACTION = 100, 1_800, 200  # tokens
DELTA, ACTION = 64, 48
EVERY, SUITE = 20, 128  # versions from one evaluation to the next, held-out tasks
QUEUE: dict[str, object] = {
    "batch_groups": BATCH_GROUPS,
    "group_size": MEMBERS,
    "capacity": 256,
    "max_staleness": 7,
}

_COUNTED = {"tasks": "task_id", "groups": "group_id", "rollouts": "rollout_id", "batches": "batch_id"}


async def fill(rig: Rig, groups: int, model: str, table: Report) -> Mapping[str, int]:
    """Write a run of `groups` groups; returns its numbers: run, groups, trained (groups), rollouts, evaluated (rollouts of evaluations), long (a
    rollout's id)."""
    started = time.perf_counter()
    run, _ = await rig.make_run(RUN, queue=QUEUE, policy={"model": model})
    trained = (groups - OPEN) // BATCH_GROUPS * BATCH_GROUPS
    known = {
        "run": run.run_id, "groups": groups, "trained": trained, "members": MEMBERS, "per": STEPS, "batch": BATCH_GROUPS, "delta": DELTA,
        "action": ACTION, "turn": DELTA + ACTION, "long": trained * MEMBERS, "long_steps": LONG_STEPS, "long_delta": LONG_DELTA,
        "long_action": LONG_ACTION, "every": EVERY, "suite": SUITE, "evaluated": (trained // BATCH_GROUPS // EVERY + 1) * SUITE,
    }  # fmt: skip
    for statement in (part for file in SQL for part in file.read_text(encoding="utf-8").split("\n--;\n")):
        async with rig.engine.begin() as connection:
            await connection.execute(text("SET LOCAL session_replication_role = replica"))
            await connection.execute(text("SET LOCAL synchronous_commit = off"))
            await connection.exec_driver_sql(Template(statement).substitute(known, model=model))
    for name, key in _COUNTED.items():
        await rig.alone(
            f"SELECT setval(pg_get_serial_sequence('{name}', '{key}'), (SELECT max({key}) FROM {name}))"
        )
    await rig.alone("VACUUM ANALYZE")
    await rig.alone("CHECKPOINT")
    size = await rig.value("SELECT pg_database_size(current_database())")
    table.add_row(
        "the run",
        f"{groups * MEMBERS:,} rollouts, {groups * MEMBERS * STEPS:,} steps, {known['evaluated']:,} evaluated rollouts, {size / 2**30:.2f} GiB",
        f"written in {time.perf_counter() - started:.0f} s",
    )
    return known | {"rollouts": groups * MEMBERS}
