"""The results of a long run, read from a sample: true to the rows, for every order in which its queue deals domains and its batches deal
train steps."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool.runs import StoredRun
from orchestrator.queries import curves, spending
from tests import builders
from tests.integration.pool.rig import small

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

MEMBERS = 4
_DEALT = (
    "INSERT INTO tasks (run_id, sha, name, domain, settings, body) VALUES (:run, '\\x00', 'task', 'coding', '{}', '{}')",
    "INSERT INTO submissions (run_id, submission, status) SELECT :run, 's' || n, 'accepted' FROM generate_series(1, :groups) n",
    """INSERT INTO groups (run_id, submission, task_id, domain, scaffold, size, seq, state, reason)
       SELECT :run, 's' || n, (SELECT max(task_id) FROM tasks), 'domain ' || (n - 1) % :domains, 'shell', :members, n - 1, 'filtered', 'zero_signal'
         FROM generate_series(1, :groups) n""",
    """INSERT INTO rollouts (run_id, group_id, member, seed, state, failure_class)
       SELECT :run, g.group_id, m, 1, 'verified', 'completed' FROM groups g, generate_series(0, :members - 1) m WHERE g.run_id = :run""",
    """INSERT INTO attempts (run_id, rollout_id, attempt, epoch, runner, scaffold, started, ended, failure_class, steps, last_idx, agent_s)
       SELECT :run, r.rollout_id, 1, 1, 'runner', 'shell', t.began, t.began + interval '40 s', 'completed', 1, 0, 2.0
         FROM rollouts r JOIN groups g USING (group_id), LATERAL (SELECT now() - interval '1 day' + g.seq * interval '1 s' AS began) t
        WHERE r.run_id = :run""",
    "UPDATE rollouts SET attempt = 1 WHERE run_id = :run",
    # Each domain has its own share of successes: 10 %, 30 %, 50 %, 70 %.
    """INSERT INTO verdicts (run_id, rollout_id, revision, attempt, epoch, reward, tests, at)
       SELECT :run, r.rollout_id, 1, 1, 1, p.performance, '[]', now() - interval '1 day' + g.seq * interval '1 s'
         FROM rollouts r JOIN groups g USING (group_id),
              LATERAL (SELECT ((hashint8(r.rollout_id) & 1023) < 1024 * (0.1 + 0.2 * (g.seq % :domains)))::int AS performance) p
        WHERE r.run_id = :run""",
)


async def dealt(engine: AsyncEngine, domains: int, groups: int) -> StoredRun:
    """A run whose queue dealt its domains in turn."""
    run = await builders.make_run(engine, small())
    values = {"run": run.run_id, "domains": domains, "groups": groups, "members": MEMBERS}
    async with engine.begin() as connection:
        for statement in _DEALT:
            wanted = {name: value for name, value in values.items() if f":{name}" in statement}
            await connection.execute(text(statement), wanted)
    return run


@pytest.mark.parametrize(("domains", "stride"), [(2, 2), (3, 3), (4, 2), (4, 4)])
async def test_every_domain_of_a_long_run_is_in_its_sample_as_it_is_in_the_run(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, domains: int, stride: int
) -> None:
    groups = 480
    run = await dealt(engine, domains, groups)
    monkeypatch.setattr(spending, "SAMPLE", MEMBERS * groups // stride)
    async with engine.connect() as connection:
        found = await spending.spending(connection, run.run_id, bins=1)
        true: dict[str | None, tuple[float, int]] = {
            row.domain: (float(row.mean), row.n)
            for row in await connection.execute(
                text(
                    "SELECT g.domain, avg(w.reward) AS mean, count(*) AS n FROM verdicts w JOIN rollouts r USING (rollout_id)"
                    " JOIN groups g USING (group_id) WHERE g.run_id = :run GROUP BY GROUPING SETS ((g.domain), ())"
                ),
                {"run": run.run_id},
            )
        }
    true["all"] = true.pop(None)
    assert {one.domain for one in found.success} == true.keys() and len(true) == domains + 1
    for one in found.success:
        mean, n = true[one.domain]
        # A 95 % interval misses one time in twenty: half as wide again one in three hundred.
        assert abs(one.mean[0] - mean) <= 1.5 * (one.high[0] - one.low[0]) / 2, one
        assert one.n[0] == pytest.approx(n / stride, rel=0.25)
    assert (found.rollouts, found.stride) == (MEMBERS * groups, stride)
    assert found.sampled == MEMBERS * groups // stride == found.success[0].n[0]
    # One group more every second, each for 40 s.
    assert max(found.busy) == pytest.approx(40 * MEMBERS, rel=0.15)


async def test_a_run_that_the_sample_has_room_for_is_read_whole(engine: AsyncEngine) -> None:
    run = await dealt(engine, 4, 120)
    async with engine.connect() as connection:
        found = await spending.spending(connection, run.run_id, bins=1)
    assert (found.sampled, found.rollouts, found.stride) == (480, 480, 1)
    assert [one.n for one in found.success] == [[480], *[[120]] * 4]


async def two_parts(engine: AsyncEngine) -> StoredRun:
    """A run of 300 batches, one every 10 s, of two train steps each. Only the second step has clipped tokens and saves."""
    run = await builders.make_run(engine, small())
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO batches (run_id, batch_no, state, size, digest, version, closed, committed, groups_so_far)"
                " SELECT :run, n, 'committed', 2, '\\x00', n + 1, now(), now(), 2 * n + 2 FROM generate_series(0, 299) n"
            ),
            {"run": run.run_id},
        )
        await connection.execute(
            text(
                "INSERT INTO train_steps (run_id, train_step, batch_id, part, at, metrics)"
                " SELECT :run, 1 + 2 * b.batch_no + p, b.batch_id, p, now() - interval '1 day' + b.batch_no * interval '10 s',"
                "        jsonb_build_object('clip_fraction', p, 'action_tokens', 100, 'wall_s', 0.5, 'seconds', '{\"forward\": 0.5}'::jsonb ||"
                "          CASE p WHEN 1 THEN '{\"save\": 0.3, \"commit\": 0.1}' ELSE '{}' END::jsonb)"
                " FROM batches b, generate_series(0, 1) p WHERE b.run_id = :run"
            ),
            {"run": run.run_id},
        )
    return run


async def test_every_part_of_its_batches_is_in_the_sample_of_a_long_run_s_train_steps(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await two_parts(engine)
    for stride in (2, 4):
        monkeypatch.setattr(curves, "SAMPLE", 600 // stride)
        async with engine.connect() as connection:
            found = await curves.curves(connection, run.run_id, points=1)
        assert (found.stride, found.first, found.last) == (stride, 1, 600)
        lines = {line.key: line.mean[0] for line in found.lines}
        assert lines["clip_fraction"] == pytest.approx(0.5, abs=0.1)
        assert lines["tokens_per_s"] == pytest.approx(20, rel=0.25)


async def test_the_stages_of_a_rollout_add_up_to_the_time_from_its_start_to_its_end(
    engine: AsyncEngine,
) -> None:
    """Attempts of 40 s each: six calls at once on one slot; a black box that worked while it waited; an attempt that is older than the columns."""
    run = await dealt(engine, 1, 3)
    reported = (
        (0, {"agent_s": 6.0, "queued_s": 5.0, "generation_s": 4.0, "waiting_s": 3.0}),
        (1, {"agent_s": 39.0, "queued_s": 30.0, "generation_s": 20.0, "waiting_s": 30.0}),
        (2, {"agent_s": 8.0, "queued_s": 2.0, "generation_s": None, "waiting_s": None}),
    )
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        for seq, values in reported:
            named = ", ".join(f"{name} = :{name}" for name in values)
            query = f"UPDATE attempts a SET {named} FROM rollouts r JOIN groups g USING (group_id) WHERE a.rollout_id = r.rollout_id AND g.seq = :seq"
            await connection.execute(text(query), values | {"seq": seq})
        await connection.execute(text("UPDATE steps SET t_gen = 17, t_queue = 17"))
    async with engine.connect() as connection:
        found = await spending.spending(connection, run.run_id, bins=1)
    mean = {cost.stage: cost.mean_s for cost in found.costs}
    assert mean == pytest.approx(
        {
            "generation": (4 + 20) / 3,
            "tools and agent": (2 + 19) / 3,
            "agent with its generation": 8 / 3,
            "queueing": (3 + 1 + 2) / 3,
            "sandbox and rest": (31 + 0 + 30) / 3,
            "verification": 0,
        }
    )
    assert sum(mean.values()) == pytest.approx(40)


async def test_success_now_is_of_the_last_rollouts_and_no_stretch_is_a_few_of_them(
    engine: AsyncEngine,
) -> None:
    run = await dealt(engine, 1, 100)  # 400 rollouts; the last 80 succeed, except the newest
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO verdicts (run_id, rollout_id, revision, attempt, epoch, reward, tests)"
                " SELECT :run, r.rollout_id, 2, 1, 1, p.one, '[]'"
                "   FROM rollouts r JOIN groups g USING (group_id),"
                "        LATERAL (SELECT (g.seq < 99 OR r.member > 0)::int AS one) p WHERE g.run_id = :run AND g.seq >= 80"
            ),
            {"run": run.run_id},
        )
    async with engine.connect() as connection:
        for bins in (18, 7, 1):
            found = await spending.spending(connection, run.run_id, bins=bins)
            everything = found.success[0]
            assert len(everything.n) == bins and sum(everything.n) == 400
            assert max(everything.n) - min(everything.n) <= 1
            assert found.now is not None and found.now.n == 64 and found.now.mean == pytest.approx(63 / 64)
            assert found.now.low < found.now.mean < found.now.high


async def test_the_phases_of_a_train_step_add_up_to_the_whole(engine: AsyncEngine) -> None:
    run = await two_parts(engine)
    for points in (600, 300, 7):
        async with engine.connect() as connection:
            found = await curves.curves(connection, run.run_id, points=points)
        drawn = [line for line in found.lines if line.key == "seconds"]
        lines = {line.part: [value for value in line.mean if value is not None] for line in drawn}
        whole = lines.pop("")
        assert lines.keys() == {"forward", "save", "commit"}
        assert [sum(each) for each in zip(*lines.values(), strict=True)] == pytest.approx(whole)
        # Forward 0.5, and of 0.4 for a batch half.
        assert sum(whole) / len(whole) == pytest.approx(0.7, rel=0.02)


_LOST = """UPDATE rollouts r SET state = 'lost', failure_class = 'verifier_failure' FROM groups g
            WHERE g.group_id = r.group_id AND g.run_id = :run AND r.member >= :kept AND g.seq = :seq"""
_REWARDED = """INSERT INTO rewards (run_id, rollout_id, revision, verdict_revision, attempt, performance, speed, process, alpha, beta, total,
                                    per_step)
               SELECT :run, r.rollout_id, 1, 1, 1, 1, 0, 0, 0, 0, 1, '[]' FROM rollouts r JOIN groups g USING (group_id)
                WHERE g.run_id = :run AND g.seq = :seq"""


@pytest.mark.parametrize(
    ("state", "reason", "rewarded"),
    [
        ("filtered", "zero_signal", True),
        ("filtered", "too_few", False),
        ("dead", "its rewards could not be computed", False),
        ("ready", None, True),  # after a rescore, which leaves rewards of the lost members
    ],
)
async def test_every_rollout_of_a_concluded_group_is_judged_or_left_out_once(
    engine: AsyncEngine, state: str, reason: str | None, rewarded: bool
) -> None:
    run = await dealt(engine, 1, 3)  # the last group still runs
    values = {"run": run.run_id, "seq": 1}
    async with engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        of_group = "UPDATE groups SET state = :state, reason = :reason WHERE run_id = :run AND seq = :seq"
        await connection.execute(text(of_group), {**values, "state": state, "reason": reason})
        await connection.execute(
            text(of_group), {"run": run.run_id, "seq": 2, "state": "dispatched", "reason": None}
        )
        await connection.execute(text(_LOST), values | {"kept": 3})
        await connection.execute(text(_LOST), {"run": run.run_id, "seq": 2, "kept": 3})
        if rewarded:
            await connection.execute(text(_REWARDED), values)
    async with engine.connect() as connection:
        found = await spending.spending(connection, run.run_id, bins=1)
    assert found.now is not None
    assert (found.now.n, found.now.left_out) == (7, {"verifier_failure": 1})
    assert (found.success[0].n, found.left_out) == ([7], {"verifier_failure": 1})


async def test_attempts_that_were_tried_again_are_a_cost_of_their_rollout(engine: AsyncEngine) -> None:
    run = await dealt(engine, 1, 2)  # 8 rollouts
    again = """INSERT INTO attempts (run_id, rollout_id, attempt, epoch, started, ended, failure_class, agent_s)
               SELECT run_id, rollout_id, 2, 2, ended, ended + interval '80 s', 'completed', 40.0 FROM attempts WHERE run_id = :run"""
    async with engine.begin() as connection:
        await connection.execute(text(again), {"run": run.run_id})
        await connection.execute(
            text("UPDATE rollouts SET attempt = 2 WHERE run_id = :run"), {"run": run.run_id}
        )
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(text("UPDATE verdicts SET verify_s = 3.0"))
    async with engine.connect() as connection:
        found = await spending.spending(connection, run.run_id, bins=1)
    assert sum(cost.mean_s for cost in found.costs) == pytest.approx(40 + 80 + 3)
    assert sum(cost.total_s for cost in found.costs) == pytest.approx(8 * 123)
    assert sum(found.busy) / len(found.busy) == pytest.approx(8 * 120 / 121, rel=0.02)
