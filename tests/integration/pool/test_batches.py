"""Batches: taken inside the window, closed once, the same after every crash, committed with everything that follows."""

import random
from collections.abc import Sequence

import anyio
import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.states import BatchState, FilterReason, GroupState
from orchestrator.pool import batches, run_end
from orchestrator.pool import transitions as history
from orchestrator.pool.batches import LiveBatch, NewVersion, contents
from orchestrator.pool.dispatch import lock_queue
from orchestrator.pool.groups import NewReward, write_rewards
from orchestrator.pool.policy_versions import needed_versions, newest_version, next_version, progress
from orchestrator.pool.quarantine import quarantine, quarantined_in_a_row
from orchestrator.pool.runs import StoredRun, begin_end, close_intake, finish_end, state_of
from orchestrator.pool.tables import batch_items, groups, outbox, policy_versions, train_steps, transitions
from orchestrator.pool.tables import batches as batch_rows
from orchestrator.scheduling.queue_policies import QueuePolicy, Windowed
from orchestrator.scheduling.replay import Transition, replay
from tests import builders
from tests.integration.pool.rig import group_state, small

pytestmark = [pytest.mark.anyio, pytest.mark.services]

AUTHOR = builders.Author(turns=1)
TWO = Windowed(2)


async def started(engine: AsyncEngine, count: int) -> tuple[StoredRun, list[int]]:
    """A run with `count` dispatched groups of two rollouts; their ids in the order of their seq."""
    run = await builders.make_run(engine, small())
    ids = await builders.accepted(engine, run, [f"t{n}" for n in range(count)], size=2)
    await builders.dispatch(engine, run)
    return run, ids


async def finish(engine: AsyncEngine, run: StoredRun, ids: Sequence[int]) -> None:
    for group_id in ids:
        await builders.finish(engine, run, group_id, AUTHOR, performances=(1.0, 0.0))


async def take(
    engine: AsyncEngine, run: StoredRun, p: int = 2, policy: QueuePolicy = TWO, p_min: int = 1
) -> LiveBatch | None:
    async with engine.begin() as connection:
        return await batches.take(connection, run.run_id, policy, p, p_min)


async def commit(engine: AsyncEngine, run: StoredRun, batch: LiveBatch, parts: int = 1) -> bool:
    async with engine.begin() as connection:
        version = await next_version(connection, run.run_id)
        new = NewVersion(
            version=version,
            parent=version - 1 if version else None,
            path=f"/v{version}",
            manifest_sha=f"{version:02x}",
        )
        metrics = [{"part": part} for part in range(parts)]
        return await batches.commit(
            connection, run.run_id, run.name, batch=batch, new=new, metrics=metrics, subject="policy.run"
        )


async def taken(engine: AsyncEngine, run: StoredRun) -> list[int]:
    """Every position in a batch, in the order of the takes."""
    async with engine.connect() as connection:
        query = (
            select(groups.c.seq)
            .join(batch_items, batch_items.c.group_id == groups.c.group_id)
            .where(groups.c.run_id == run.run_id, ~batch_items.c.voided)
            .order_by(batch_items.c.batch_id, batch_items.c.pos)
        )
        return [int(seq) for seq in (await connection.scalars(query)).all()]


async def test_figure_5_a_stuck_group_holds_the_window_until_it_ends(engine: AsyncEngine) -> None:
    run, ids = await started(engine, 13)
    await finish(engine, run, [id for seq, id in enumerate(ids) if seq not in (7, 12)])
    while (batch := await take(engine, run, 1, Windowed(4))) is not None and batch.state is BatchState.CLOSED:
        assert await commit(engine, run, batch)
    assert await taken(engine, run) == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
    await finish(engine, run, [ids[7]])
    for _ in range(2):
        batch = await take(engine, run, 1, Windowed(4))
        assert batch is not None and await commit(engine, run, batch)
    assert (await taken(engine, run))[-2:] == [7, 11]


async def test_a_batch_stays_open_until_it_is_full_and_each_take_moves_the_window(
    engine: AsyncEngine,
) -> None:
    run, ids = await started(engine, 4)
    empty = await take(engine, run, p=3)
    assert empty is not None and (empty.state, empty.taken) == (BatchState.OPEN, 0)
    await finish(engine, run, [ids[1]])
    batch = await take(engine, run, p=3)
    assert batch is not None and (batch.batch_id, batch.taken) == (empty.batch_id, 1)
    await finish(engine, run, [ids[2]])
    batch = await take(engine, run, p=3)
    assert batch is not None and batch.taken == 1, "position 2 lies beyond the window 0..1"
    await finish(engine, run, [ids[0]])
    batch = await take(engine, run, p=3)
    assert batch is not None and (batch.state, batch.taken) == (BatchState.CLOSED, 3)
    assert await taken(engine, run) == [1, 0, 2]


async def test_a_closed_batch_is_the_same_at_every_claim_whatever_happens_in_between(
    engine: AsyncEngine,
) -> None:
    run, ids = await started(engine, 4)
    await finish(engine, run, ids[:2])
    first = await take(engine, run)
    assert first is not None and first.state is BatchState.CLOSED
    async with engine.connect() as connection:
        before = await contents(connection, first.batch_id)
    rescored = before[0]
    async with engine.begin() as connection:
        other = NewReward(
            rollout_id=rescored.rollout_id,
            attempt=1,
            verdict_revision=1,
            performance=0.25,
            speed=0.0,
            process=0.0,
            alpha=0.0,
            beta=0.0,
            total=0.25,
            t_agent=1.0,
            t_base=None,
            t_base_origin=None,
            process_by_signal={},
            sd_log_t=None,
            speed_noise=None,
            silent=None,
            baseline=0.5,
            divisor=1.0,
            advantage=-0.25,
            per_step=[{"advantage": -0.25, "weight": 1}],
        )
        await write_rewards(connection, run.run_id, [other])
    await finish(engine, run, ids[2:])
    await engine.dispose()  # the trainer died and came back
    again = await take(engine, run)
    assert again == first
    async with engine.connect() as connection:
        assert await contents(connection, first.batch_id) == before
    assert await taken(engine, run) == [0, 1]


async def test_many_that_claim_at_once_get_one_batch_and_take_each_group_once(engine: AsyncEngine) -> None:
    run, ids = await started(engine, 4)
    await finish(engine, run, ids)
    claimed: list[LiveBatch | None] = []

    async def claim() -> None:
        claimed.append(await take(engine, run))

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(claim)
    assert len(claimed) == 6 and len({(b.batch_id, b.digest) for b in claimed if b}) == 1
    assert await taken(engine, run) == [0, 1]


async def test_a_group_cannot_be_in_two_batches_that_count(engine: AsyncEngine) -> None:
    run, ids = await started(engine, 2)
    await finish(engine, run, ids)
    batch = await take(engine, run)
    assert batch is not None and await commit(engine, run, batch)
    with pytest.raises(IntegrityError, match="batch_items_once"):
        async with engine.begin() as connection:
            await connection.execute(
                insert(batch_items).values(batch_id=batch.batch_id, pos=9, group_id=ids[0])
            )


async def test_a_commit_writes_groups_version_metrics_and_announcement_once(engine: AsyncEngine) -> None:
    run, ids = await started(engine, 4)
    await finish(engine, run, ids)
    for number in range(2):
        batch = await take(engine, run)
        assert batch is not None and batch.batch_no == number
        assert await commit(engine, run, batch, parts=2)
        assert not await commit(engine, run, batch, parts=2), "only the answer was lost"
    async with engine.connect() as connection:
        newest = await newest_version(connection, run.run_id)
        assert newest is not None and (newest.version, newest.parent, newest.batch_no) == (1, 0, 1)
        steps = await connection.execute(
            select(train_steps.c.train_step, train_steps.c.part).order_by(text("1"))
        )
        assert [tuple(row) for row in steps] == [(1, 0), (2, 1), (3, 0), (4, 1)]
        bodies = (await connection.scalars(select(outbox.c.body).order_by(outbox.c.outbox_id))).all()
        assert [body["version"] for body in bodies] == [0, 1]
        done = await progress(connection, run.run_id)
        assert (done.committed_batches, done.train_steps) == (2, 4)
        assert await connection.scalar(select(func.count()).select_from(policy_versions)) == 2
        assert await needed_versions(connection, run.run_id, 1) == {0, 1}
        counts = (await lock_queue(connection, run.run_id)).counts
        assert (counts.outstanding, counts.consumed, counts.resolved, counts.committed_batches) == (
            0,
            4,
            0,
            2,
        )
    for group_id in ids:
        assert (await group_state(engine, group_id))[0] is GroupState.TRAINED
    with pytest.raises(IntegrityError):  # a version number is never used twice
        async with engine.begin() as connection:
            await batches.publish(
                connection,
                run.run_id,
                run.name,
                NewVersion(version=1, parent=0, path="/x", manifest_sha="00"),
                "policy.run",
                None,
            )


async def test_intake_closed_the_last_batch_closes_short_and_then_there_is_none(engine: AsyncEngine) -> None:
    run, ids = await started(engine, 3)
    await finish(engine, run, ids[:2])
    async with engine.begin() as connection:
        assert await close_intake(connection, run.run_id)
        assert not await close_intake(connection, run.run_id)
    batch = await take(engine, run, p=4, policy=Windowed(3), p_min=2)
    assert batch is not None and (batch.state, batch.taken) == (BatchState.OPEN, 2), "one is in flight"
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE rollouts SET state = 'lost', failure_class = 'cancelled' WHERE group_id = :g"),
            {"g": ids[2]},
        )
        await connection.execute(
            text("UPDATE groups SET state = 'filtered', reason = 'cancelled' WHERE group_id = :g"),
            {"g": ids[2]},
        )
    batch = await take(engine, run, p=4, policy=Windowed(3), p_min=2)
    assert batch is not None and (batch.state, batch.taken) == (BatchState.CLOSED, 2)
    assert await commit(engine, run, batch)
    assert await take(engine, run, p=4) is None and await take(engine, run, p=4) is None


async def test_too_few_for_a_short_batch_are_filtered_when_nothing_more_can_come(engine: AsyncEngine) -> None:
    run, ids = await started(engine, 1)
    await finish(engine, run, ids)
    async with engine.begin() as connection:
        await close_intake(connection, run.run_id)
    assert await take(engine, run, p=4, p_min=2) is None
    assert await group_state(engine, ids[0]) == (GroupState.FILTERED, FilterReason.RUN_ENDED)
    assert await taken(engine, run) == []


async def test_at_the_end_of_a_run_a_closed_batch_is_still_committed_and_all_else_is_filtered(
    engine: AsyncEngine,
) -> None:
    run, ids = await started(engine, 6)
    [waiting] = await builders.accepted(engine, run, ["late"], size=2)
    await finish(engine, run, ids[:4])
    closed = await take(engine, run)
    assert closed is not None and closed.state is BatchState.CLOSED
    async with engine.begin() as connection:
        assert await begin_end(connection, run.run_id, "a person ended it")
        assert not await begin_end(connection, run.run_id, "again")
        assert await run_end.filter_open(connection, run.run_id) == 5
        assert not await finish_end(connection, run.run_id), "the closed batch is not committed yet"
    assert await take(engine, run) == closed
    assert await commit(engine, run, closed)
    assert await take(engine, run) is None
    async with engine.begin() as connection:
        assert await finish_end(connection, run.run_id) and await state_of(connection, run.run_id) == "ended"
    states = [await group_state(engine, group_id) for group_id in [*ids, waiting]]
    assert [state for state, _ in states] == [GroupState.TRAINED] * 2 + [GroupState.FILTERED] * 5
    assert {reason for state, reason in states if state is GroupState.FILTERED} == {FilterReason.RUN_ENDED}


async def test_the_end_of_a_run_drops_its_open_batch(engine: AsyncEngine) -> None:
    run, ids = await started(engine, 2)
    await finish(engine, run, ids[:1])
    batch = await take(engine, run)
    assert batch is not None and batch.taken == 1
    async with engine.begin() as connection:
        await begin_end(connection, run.run_id, "test")
        await run_end.filter_open(connection, run.run_id)
        assert await finish_end(connection, run.run_id)
    for group_id in ids:
        assert await group_state(engine, group_id) == (GroupState.FILTERED, FilterReason.RUN_ENDED)
    assert await take(engine, run) is None and await taken(engine, run) == []


async def test_a_quarantined_batch_is_voided_and_its_number_is_used_again(engine: AsyncEngine) -> None:
    run, ids = await started(engine, 4)
    await finish(engine, run, ids)
    bad = await take(engine, run)
    assert bad is not None
    async with engine.begin() as connection:
        assert await quarantine(connection, run.run_id, bad.batch_id, "its loss is nan\x00")
        assert not await quarantine(connection, run.run_id, bad.batch_id, "another reason")
        row = select(batch_rows).where(batch_rows.c.batch_id == bad.batch_id)
        kept = (await connection.execute(row)).one()
        assert (kept.state, kept.void_detail) == (BatchState.VOIDED, "its loss is nan\ufffd")
        assert await quarantined_in_a_row(connection, run.run_id) == 1
    assert await group_state(engine, ids[0]) == (GroupState.FILTERED, FilterReason.QUARANTINED)
    assert not await commit(engine, run, bad)
    good = await take(engine, run)
    assert good is not None and (good.batch_no, good.batch_id != bad.batch_id) == (0, True)
    assert await commit(engine, run, good)
    async with engine.connect() as connection:
        assert await quarantined_in_a_row(connection, run.run_id) == 0


async def test_the_recorded_history_of_a_run_replays_to_the_same_claims(engine: AsyncEngine) -> None:
    dice = random.Random(3)
    run, ids = await started(engine, 10)
    policy, left = Windowed(3), list(ids)
    while left or dice.random() < 0.8:
        event = dice.choice(["end", "end", "lose", "take", "commit"])
        if event == "end" and left:
            await finish(engine, run, [left.pop(dice.randrange(min(5, len(left))))])
        elif event == "lose" and left and dice.random() < 0.3:
            async with engine.begin() as connection:
                await history.lock_run(connection, run.run_id)
                lost = left.pop(0)
                await history.move_group(
                    connection, lost, GroupState.DISPATCHED, GroupState.FILTERED, reason="too_few"
                )
        elif event in ("take", "commit"):
            batch = await take(engine, run, 2, policy)
            if event == "commit" and batch is not None and batch.state is BatchState.CLOSED:
                assert await commit(engine, run, batch)
    async with engine.connect() as connection:
        rows = await connection.execute(
            select(transitions.c.transition_id, transitions.c.seq, transitions.c.to_state).where(
                transitions.c.run_id == run.run_id,
                transitions.c.kind == "group",
                transitions.c.seq.is_not(None),
            )
        )
        claims = replay([Transition(id, seq, GroupState(state)) for id, seq, state in rows], policy)
    assert claims and all(claim.agrees for claim in claims)
    assert sorted(seq for claim in claims for seq in claim.derived) == sorted(await taken(engine, run))


async def test_the_views_explain_rewards_window_lineage_and_staleness(engine: AsyncEngine) -> None:
    run, ids = await started(engine, 5)
    await finish(engine, run, ids[:2])
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
    batch = await take(engine, run)
    assert batch is not None and await commit(engine, run, batch)
    await finish(engine, run, ids[3:4])
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT * FROM reward_breakdown ORDER BY rollout_id"))).all()
        assert len(rows) == 6
        for row in rows:
            assert row.total == pytest.approx(
                row.performance + row.beta * row.speed + row.alpha * row.process
            )
            assert row.per_step[0]["return_to_go"] == pytest.approx(row.total)
            assert row.advantage == pytest.approx((row.total - row.baseline) / row.divisor)
        assert [row.batch_no for row in rows] == [0] * 4 + [None] * 2
        window = (await connection.execute(text("SELECT * FROM window_state ORDER BY seq"))).all()
        assert [(w.seq, w.state, w.is_head, w.inside) for w in window] == [
            (2, "dispatched", True, True),
            (3, "ready", False, False),
            (4, "dispatched", False, False),
        ]
        stale = (await connection.execute(text("SELECT batch_no, staleness, tokens FROM staleness"))).one()
        lineage = (
            await connection.execute(text("SELECT sum(to_pos - from_pos) AS n FROM token_lineage"))
        ).one()
        actions = await connection.scalar(
            text("SELECT sum(action_tokens) FROM trajectory WHERE group_id IN (:a, :b) AND current"),
            {"a": ids[0], "b": ids[1]},
        )
        assert (stale.batch_no, stale.staleness) == (0, 0) and stale.tokens == lineage.n == actions
