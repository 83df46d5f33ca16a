"""A long history, written in SQL: trained groups with their rollouts, steps, rewards and batches, followed by ready groups.

Two rollouts per group, five steps per rollout: a million groups have ten million steps. Steps are short (64 + 48 tokens), so that they
fit on a disk; the reads of a claim or a dispatch do not depend on their length. Everything that indexes and planners see is as in a real
run; digests are not.
"""

import time

from sqlalchemy import text

from ops.lab.benchmarks.pool.rig import Rig
from ops.lab.benchmarks.targets import Report

RUN = "history"
BATCH_GROUPS, CAPACITY, STALENESS = 32, 1024, 31
MEMBERS, STEPS = 2, 5
TAIL = 512  # ready groups behind the claimed ones: the queue is never empty
QUEUE: dict[str, object] = {
    "batch_groups": BATCH_GROUPS,
    "group_size": MEMBERS,
    "capacity": CAPACITY,
    "max_staleness": STALENESS,
    "window_fraction": 0.15,
}

# Groups 1 … trained are in batches of 32; the others are ready. `trained` is a multiple of 32.
_EACH_GROUP, _EACH_ROLLOUT = (
    "FROM generate_series(1, {groups}) n",
    "FROM generate_series(1, {groups} * {members}) n",
)
_FILL = (
    "ALTER TABLE {steps} SET UNLOGGED",
    """INSERT INTO tasks (task_id, run_id, sha, name, domain, settings, body)
       SELECT n, {run}, int8send(n), 'task ' || n, 'general', '{{}}', '{{}}' FROM generate_series(1, 1000) n""",
    f"INSERT INTO submissions (run_id, submission, status) SELECT {{run}}, 's' || n, 'accepted' {_EACH_GROUP}",
    f"""INSERT INTO groups (group_id, run_id, submission, task_id, domain, scaffold, size, seq, state, dispatched, ready, ended)
        SELECT n, {{run}}, 's' || n, 1 + n % 1000, 'general', 'shell', {{members}}, n - 1, CASE WHEN n <= {{trained}} THEN 'trained' ELSE 'ready' END,
               now(), now(), CASE WHEN n <= {{trained}} THEN now() END {_EACH_GROUP}""",
    f"""INSERT INTO rollouts (rollout_id, run_id, group_id, member, seed, state, lease_epoch, failure_class)
        SELECT n, {{run}}, 1 + (n - 1) / {{members}}, (n - 1) % {{members}}, n, 'verified', 2, 'completed' {_EACH_ROLLOUT}""",
    f"""INSERT INTO attempts (run_id, rollout_id, attempt, epoch, runner, scaffold, ended, failure_class, steps, last_idx, agent_s)
        SELECT {{run}}, n, 1, 1, 'runner', 'shell', now() - interval '1 day', 'completed', {{per}}, {{per}} - 1, 2.0 {_EACH_ROLLOUT}""",
    f"""INSERT INTO verdicts (run_id, rollout_id, revision, attempt, epoch, reward, tests)
        SELECT {{run}}, n, 1, 1, 2, n % 2, '[]' {_EACH_ROLLOUT}""",
    f"""INSERT INTO rewards (run_id, rollout_id, revision, verdict_revision, attempt, performance, speed, process, alpha, beta, total, baseline,
                             divisor, advantage, per_step)
        SELECT {{run}}, n, 1, 1, 1, n % 2, 0, 0, 0.02, 0.1, n % 2, 0.5, 1, n % 2 - 0.5,
               (SELECT jsonb_agg(jsonb_build_object('advantage', n % 2 - 0.5, 'weight', sign(m)))
                  FROM generate_series(1, {{per}}) m) {_EACH_ROLLOUT}""",
    "INSERT INTO sampling (run_id, sha, params) VALUES ({run}, 'x', '{{\"temperature\": 1.0}}')",
    """INSERT INTO steps (run_id, rollout_id, attempt, idx, epoch, kind, parent_idx, root_idx, keep_len, state_len, full_len, v_lo, v_hi, spans,
                          sampling_id, agent, finish, parse, chain_sha, row_sha, delta, action, logprobs)
       SELECT {run}, 1 + n / {per}, 1, n % {per}, 1, CASE WHEN n % {per} = 0 THEN 'root' ELSE 'continues' END, nullif(n % {per}, 0) - 1, 0,
              112 * (n % {per}), 112 * (n % {per}) + 64, 112 * (n % {per}) + 112, 1, 1, ARRAY[1, 0, 48], (SELECT max(sampling_id) FROM sampling),
              'main', 'stop', 'ok', decode(repeat('ab', 32), 'hex'), decode(repeat('cd', 32), 'hex'), decode(repeat('01', 256), 'hex'),
              decode(repeat('02', 192), 'hex'), decode(repeat('03', 192), 'hex')
         FROM generate_series(0, {groups} * {members} * {per} - 1) n""",
    """INSERT INTO batches (batch_id, run_id, batch_no, state, size, digest, version, closed, committed, groups_so_far)
       SELECT n, {run}, n - 1, 'committed', {batch}, decode('00', 'hex'), n, now(), now(), n * {batch}
         FROM generate_series(1, {trained} / {batch}) n""",
    """INSERT INTO batch_items (batch_id, pos, group_id)
       SELECT 1 + (n - 1) / {batch}, (n - 1) % {batch}, n FROM generate_series(1, {trained}) n""",
    """INSERT INTO batch_rollouts (batch_id, group_id, rollout_id, attempt, reward_revision, baseline, divisor, advantage)
       SELECT 1 + (n - 1) / ({batch} * {members}), 1 + (n - 1) / {members}, n, 1, 1, 0.5, 1, n % 2 - 0.5
         FROM generate_series(1, {trained} * {members}) n""",
    """INSERT INTO policy_versions (run_id, version, parent, batch_no, path, manifest_sha)
       SELECT {run}, n, nullif(n - 1, -1), nullif(n - 1, -1), '/v', '00' FROM generate_series(0, {trained} / {batch}) n""",
    """INSERT INTO train_steps (run_id, train_step, batch_id, part, metrics)
       SELECT {run}, n, n, 0, '{{}}' FROM generate_series(1, {trained} / {batch}) n""",
    f"""INSERT INTO transitions (run_id, kind, entity_id, seq, from_state, to_state)
        SELECT {{run}}, 'group', n, n - 1, 'accepted', 'dispatched' {_EACH_GROUP}""",
    f"""INSERT INTO transitions (run_id, kind, entity_id, from_state, to_state, epoch)
        SELECT {{run}}, 'rollout', n, 'verifying', 'verified', 2 {_EACH_ROLLOUT}""",
    "UPDATE queue SET next_seq = {groups}, floor_seq = {trained} WHERE run_id = {run}",
)
_COUNTED = {"tasks": "task_id", "groups": "group_id", "rollouts": "rollout_id", "batches": "batch_id"}


async def fill(rig: Rig, groups: int, claims: int, table: Report) -> None:
    """Write the history of `groups` groups. Enough of them are ready for `claims` batches and a tail."""
    started = time.perf_counter()
    run, _ = await rig.make_run(RUN, queue=QUEUE, rollout={"slots": 64})
    ready = claims * BATCH_GROUPS + TAIL
    trained = max(BATCH_GROUPS, (groups - ready) // BATCH_GROUPS * BATCH_GROUPS)
    known = {
        "run": run.run_id,
        "steps": f"steps_{run.run_id}",
        "groups": trained + ready,
        "trained": trained,
        "members": MEMBERS,
        "per": STEPS,
        "batch": BATCH_GROUPS,
    }
    offset = {
        table: int(await rig.value(f"SELECT max({key}) FROM {table}")) for table, key in _COUNTED.items()
    }
    assert not any(offset.values()), f"the history comes first: {offset}"
    for statement in _FILL:
        async with rig.engine.begin() as connection:
            # Skip a million foreign-key checks of rows that are correct by construction, and do not wait for the disk.
            await connection.execute(text("SET LOCAL session_replication_role = replica"))
            await connection.execute(text("SET LOCAL synchronous_commit = off"))
            await connection.exec_driver_sql(statement.format(**known))
    for name, key in _COUNTED.items():
        await rig.alone(
            f"SELECT setval(pg_get_serial_sequence('{name}', '{key}'), (SELECT max({key}) FROM {name}))"
        )
    await rig.alone("VACUUM ANALYZE")
    await rig.alone("CHECKPOINT")  # write the history out before anything is measured
    steps = (trained + ready) * MEMBERS * STEPS
    size = await rig.value("SELECT pg_database_size(current_database())")
    table.add_row(
        "the history behind what follows",
        f"{trained + ready:,} groups, {steps:,} steps, {size / 2**30:.1f} GiB",
        f"written in {time.perf_counter() - started:.0f} s",
    )
