"""Stages that follow one another, on rows: when each group is dispatched, and under which limits."""

from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.states import BatchState, RolloutState
from orchestrator.pool import batches
from orchestrator.pool.backlog import stages
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.leases import lease, retry
from orchestrator.pool.rewind import rewind
from orchestrator.pool.run_end import STEP, filter_passed
from orchestrator.pool.runs import StoredRun, begin_end, close_intake, state_of
from orchestrator.pool.tables import attempts, groups, queue, rollouts
from orchestrator.roles.dispatcher import dispatch
from orchestrator.roles.run_end import check_end
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.settings.config import Config
from tests import builders
from tests.integration.pool.rig import context_of, group_state, rollouts_of, small, take

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]

STAGE: dict[str, Any] = {
    "name": "warm",
    "domains": {"coding": 1.0},
    "difficulties": ["easy"],
    "end_batches": 1,
    "then": [{"name": "hard", "domains": {"coding": 1.0, "general": 1.0}, "difficulties": ["hard"]}],
}
QUEUE = {"batch_groups": 2, "group_size": 2, "capacity": 20, "max_staleness": 9}


async def started(engine: AsyncEngine) -> tuple[StoredRun, Config]:
    """A run whose first batch waits to be taken, with tasks for both of its stages."""
    raw = {"run": {"name": "course"}, "queue": QUEUE, "rollout": {"slots": 40}, "stage": STAGE}
    run = await builders.make_run(engine, Config.model_validate(raw))
    await builders.ready_groups(engine, run, ["a", "b"], builders.Author())
    await builders.accepted(engine, run, ["e1", "e2"], size=2, difficulty="easy")
    await builders.accepted(engine, run, ["h1", "h2"], size=2, difficulty="hard")
    await builders.accepted(engine, run, ["g1", "g2"], size=2, domain="general", difficulty="hard")
    return run, Config.from_json(run.config)


async def dispatched(engine: AsyncEngine, run: StoredRun) -> list[str]:
    """The submissions dispatched now, in the order of their queue positions."""
    context = context_of(engine, run)
    async with engine.begin() as connection:
        await dispatch(connection, context)
        found = select(groups.c.submission).where(groups.c.state == "dispatched").order_by(groups.c.seq)
        return list(await connection.scalars(found))


async def commit_one(engine: AsyncEngine, run: StoredRun) -> None:
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
        batch = await batches.take(connection, run.run_id, queue_policy("greedy", 20, 0.3), 2, 1)
        assert batch is not None
        new = NewVersion(version=1, parent=0, path="/1", manifest_sha="1")
        assert await batches.commit(
            connection, run.run_id, run.name, batch=batch, new=new, metrics=[{}], subject="p"
        )


async def held(engine: AsyncEngine, run: StoredRun) -> str:
    config = Config.from_json(run.config)
    async with engine.connect() as connection:
        found = await stages(connection, run.run_id, config, QueueSettings.of(config))
    return next(stage.held for stage in found if stage.name == "dispatch")


async def test_a_stage_dispatches_its_own_tasks_and_the_next_one_begins_with_the_commit(
    engine: AsyncEngine,
) -> None:
    run, _ = await started(engine)
    assert await dispatched(engine, run) == ["e1", "e2"]
    assert await dispatched(engine, run) == ["e1", "e2"]
    assert await held(engine, run) == "its stage has not started"
    await commit_one(engine, run)
    # Shares count from the stage's beginning: four earlier groups of coding put no domain behind.
    assert await dispatched(engine, run) == ["e1", "e2", "h1", "g1", "h2", "g2"]


async def test_a_group_keeps_the_stage_that_it_was_dispatched_in(engine: AsyncEngine) -> None:
    run, config = await started(engine)
    await dispatched(engine, run)
    await commit_one(engine, run)
    await dispatched(engine, run)
    async with engine.begin() as connection:
        rows = await connection.execute(select(groups.c.submission, groups.c.group_id))
        ids = {row.submission: row.group_id for row in rows}
        for submission, stage in (("e1", "warm"), ("g1", "hard")):
            for rollout_id in await rollouts_of(connection, ids[submission]):
                lease = await take(connection, rollout_id)
                assert lease is not None and config.stage.all[lease.stage].name == stage


async def test_tasks_of_a_stage_that_is_over_are_filtered_and_no_others(engine: AsyncEngine) -> None:
    run, config = await started(engine)
    async with engine.begin() as connection:
        assert await filter_passed(connection, run.run_id, config.stage) == 0
    await commit_one(engine, run)
    late = await builders.accepted(engine, run, ["e3"], size=2, difficulty="easy")
    async with engine.begin() as connection:
        assert await filter_passed(connection, run.run_id, config.stage) == 3  # e1, e2, e3
        left = select(groups.c.submission).where(groups.c.state == "accepted").order_by(groups.c.submission)
        assert list(await connection.scalars(left)) == ["g1", "g2", "h1", "h2"]
        open_members = text(
            "SELECT count(*) FROM rollouts r JOIN groups g USING (group_id) WHERE g.state = 'filtered' AND r.state <> 'lost'"
        )
        assert await connection.scalar(open_members) == 0
    assert await group_state(engine, late[0]) == ("filtered", "stage_over")


async def test_a_group_keeps_its_stage_when_the_batches_before_its_dispatch_are_undone(
    engine: AsyncEngine,
) -> None:
    run, config = await started(engine)
    await dispatched(engine, run)
    await commit_one(engine, run)
    await dispatched(engine, run)
    async with engine.begin() as connection:
        hard = select(groups.c.group_id).where(groups.c.submission == "g1")
        [first, _] = await rollouts_of(connection, await connection.scalar(hard) or 0)
        held = await take(connection, first)
        await rewind(connection, run.run_id, -1, "p", "a test", lambda version: True)
        again = await retry(connection, first, RolloutState.RUNNING, 1, reason="lost", delay_s=0.0)
        assert held is not None and again == (2, 2)
        lease_again = await lease(connection, run.run_id, first, 2, "builder", 60.0)
        assert lease_again is not None
        assert [config.stage.all[one.stage].name for one in (held, lease_again)] == ["hard", "hard"]
    # The first stage is active once more, and nothing of the second is dispatched in it.
    assert await dispatched(engine, run) == ["e1", "e2", "h1", "g1", "h2", "g2"]


async def many(engine: AsyncEngine, run: StoredRun, difficulty: str, number: int = 5000) -> None:
    """So many more accepted groups of one task, in coding."""
    [like] = await builders.accepted(engine, run, [f"{difficulty}-first"], size=2, difficulty=difficulty)
    statement = text(
        "INSERT INTO groups (run_id, submission, task_id, domain, scaffold, size, difficulty) "
        "SELECT run_id, submission || n, task_id, domain, scaffold, size, difficulty FROM groups, generate_series(1, :n) n "
        "WHERE group_id = :like"
    )
    async with engine.begin() as connection:
        await connection.execute(statement, {"n": number, "like": like})
    async with engine.connect() as connection:
        alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await alone.execute(text("VACUUM ANALYZE groups, tasks"))


async def rows_read(connection: AsyncConnection) -> int:
    """Rows read by this connection lately, of any table: the difference of two calls in one transaction is the number read in between."""
    query = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"
    return int(await connection.scalar(text(query)) or 0)


@pytest.mark.parametrize("waits", ["hard", "easy"])
async def test_what_a_dispatch_reads_does_not_grow_with_what_waits_for_its_stage_or_a_later_one(
    engine: AsyncEngine, waits: str
) -> None:
    raw = {"run": {"name": "course"}, "queue": QUEUE, "rollout": {"slots": 40}, "stage": STAGE}
    run = await builders.make_run(engine, Config.model_validate(raw))
    await builders.accepted(engine, run, ["e1"], size=2, difficulty="easy")
    await many(engine, run, waits)
    async with engine.begin() as connection:
        before = await rows_read(connection)
        assert await dispatch(connection, context_of(engine, run)) >= 2
        assert await rows_read(connection) - before < 1500


async def test_a_run_of_one_stage_asks_nothing_about_stages_and_its_ender_locks_nothing(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small())
    await builders.accepted(engine, run, ["a"], difficulty="easy")
    statements: list[str] = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    async with engine.begin() as connection:
        assert await check_end(connection, context_of(engine, run)) == 0
        assert not await locked(connection)
        assert await dispatch(connection, context_of(engine, run)) == 4
        [group_id] = await connection.scalars(select(groups.c.group_id))
        before = len(statements)
        assert await take(connection, (await rollouts_of(connection, group_id))[0]) is not None
        assert not [one for one in statements[before:] if "batches" in one]
    assert not [one for one in statements if "difficulty" in one or "kinds" in one]


async def run_out(engine: AsyncEngine) -> tuple[StoredRun, Config]:
    """A run whose first stage has nothing more to dispatch, with two tasks for the second one; intake is closed."""
    raw = {"run": {"name": "course"}, "queue": QUEUE, "rollout": {"slots": 40}, "stage": STAGE}
    run = await builders.make_run(engine, Config.model_validate(raw))
    await builders.accepted(engine, run, ["h1", "h2"], size=2, difficulty="hard")
    async with engine.begin() as connection:
        await close_intake(connection, run.run_id)
    return run, Config.from_json(run.config)


async def ender_once(engine: AsyncEngine, run: StoredRun) -> tuple[str, str | None]:
    """State of the run and why admission is closed, after one pass of the run's end."""
    async with engine.begin() as connection:
        await check_end(connection, context_of(engine, run))
        why = select(queue.c.admission_reason).where(queue.c.run_id == run.run_id)
        return await state_of(connection, run.run_id), await connection.scalar(why)


@pytest.mark.parametrize("left", ["nothing", "a dispatched group", "tasks of the stage"])
async def test_a_run_ends_when_its_stage_runs_out_of_tasks_and_intake_is_closed_and_not_before(
    engine: AsyncEngine, left: str
) -> None:
    run, _ = await run_out(engine)
    if left != "nothing":
        await builders.accepted(engine, run, ["e1"], size=2, difficulty="easy")
    if left == "a dispatched group":
        assert await dispatched(engine, run) == ["e1"]
    found, why = await ender_once(engine, run)
    if left != "nothing":
        assert (found, why) == ("active", None)
        return
    assert found == "ended" and why is not None and "stage 'warm' ran out of tasks before batch 1" in why
    async with engine.connect() as connection:
        ends = await connection.execute(select(groups.c.state, groups.c.reason).distinct())
        assert ends.all() == [("filtered", "run_ended")]


async def claim(engine: AsyncEngine, run: StoredRun, config: Config) -> batches.LiveBatch | None:
    policy = queue_policy("greedy", 20, 0.3)
    async with engine.begin() as connection:
        return await batches.take(connection, run.run_id, policy, 2, 1, config.stage)


async def test_a_short_batch_of_a_stage_closes_though_tasks_wait_for_the_next_one(
    engine: AsyncEngine,
) -> None:
    run, config = await run_out(engine)
    [easy] = await builders.accepted(engine, run, ["e1"], size=4, difficulty="easy")
    open_batch = await claim(engine, run, config)
    assert open_batch is not None and open_batch.state is BatchState.OPEN
    assert await dispatched(engine, run) == ["e1"]
    await builders.finish(engine, run, easy, builders.Author())
    closed = await claim(engine, run, config)
    assert closed is not None and (closed.state, closed.taken) == (BatchState.CLOSED, 1)
    assert await ender_once(engine, run) == ("active", None)
    await commit_one(engine, run)  # it is the only one of its stage, and the next stage starts
    assert await ender_once(engine, run) == ("active", None)
    assert await dispatched(engine, run) == ["h1", "h2"]


async def test_nothing_is_claimed_when_a_stage_has_run_out(engine: AsyncEngine) -> None:
    run, config = await run_out(engine)
    assert await claim(engine, run, config) is None


async def locked(connection: AsyncConnection) -> bool:
    """Whether this transaction holds any row's lock."""
    query = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'RowShareLock'"
    return bool(await connection.scalar(text(query)))


async def test_looking_for_tasks_whose_stage_is_over_locks_nothing_and_reads_little(
    engine: AsyncEngine,
) -> None:
    run, config = await started(engine)
    await commit_one(engine, run)
    assert [await ended_early(engine, run, config) for _ in range(2)] == [2, 0]  # e1, e2
    await many(engine, run, "hard")
    async with engine.begin() as connection:
        before = await rows_read(connection)
        assert await filter_passed(connection, run.run_id, config.stage) == 0
        assert await rows_read(connection) - before < 100 and not await locked(connection)


async def ended_early(engine: AsyncEngine, run: StoredRun, config: Config) -> int:
    async with engine.begin() as connection:
        return await filter_passed(connection, run.run_id, config.stage)


async def test_many_tasks_whose_stage_is_over_are_filtered_step_by_step(engine: AsyncEngine) -> None:
    run, config = await started(engine)
    await many(engine, run, "easy", 2 * STEP)
    await commit_one(engine, run)
    seen: list[str] = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *call: seen.append(call[2]))
    assert await ended_early(engine, run, config) == STEP
    assert len(seen) < 20, "statements do not grow with groups"
    assert [await ended_early(engine, run, config) for _ in range(3)] == [STEP, 3, 0]
    async with engine.connect() as connection:
        left = select(groups.c.submission).where(groups.c.state == "accepted").order_by(groups.c.submission)
        assert list(await connection.scalars(left)) == ["g1", "g2", "h1", "h2"]


async def test_the_end_of_a_run_filters_step_by_step_and_what_is_leased_loses_its_lease(
    engine: AsyncEngine,
) -> None:
    run, _ = await started(engine)
    await many(engine, run, "hard", STEP)
    assert await dispatched(engine, run) == ["e1", "e2"]
    async with engine.begin() as connection:
        easy = select(groups.c.group_id).where(groups.c.submission == "e1")
        [leased, queued] = await rollouts_of(connection, await connection.scalar(easy) or 0)
        assert await take(connection, leased) is not None
        await begin_end(connection, run.run_id, "test")
        filtered: list[int] = []
        while not filtered or filtered[-1]:
            filtered.append(await check_end(connection, context_of(engine, run)))
        assert filtered == [STEP, 9, 0]  # a, b, e1, e2, h1, h2, g1, g2, and with them the first of the many
        assert await state_of(connection, run.run_id) == "ended"
        ends = await connection.execute(select(groups.c.state, groups.c.reason).distinct())
        assert ends.all() == [("filtered", "run_ended")]
        members = select(rollouts.c.state, rollouts.c.failure_class, rollouts.c.lease_owner)
        lost = await connection.execute(members.where(rollouts.c.rollout_id.in_([leased, queued])).distinct())
        assert lost.all() == [("lost", "cancelled", None)]
        attempt = select(attempts.c.failure_class, attempts.c.reason, attempts.c.ended.is_not(None))
        over = await connection.execute(attempt.where(attempts.c.rollout_id == leased))
        assert over.all() == [("cancelled", "run_ended", True)]
        history = text(
            "SELECT from_state, to_state, epoch, reason FROM transitions WHERE kind = 'rollout' AND to_state = 'lost' "
            "AND entity_id IN (:one, :other) ORDER BY entity_id"
        )
        rows = await connection.execute(history, {"one": leased, "other": queued})
        assert rows.all() == [
            ("running", "lost", 1, "run_ended"),
            ("queued", "lost", 1, "run_ended"),
        ]
