"""Members of a group: what their ends, verdicts and timeouts mean for its rewards, and when it is concluded."""

import anyio
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.events import VerdictReached
from orchestrator.contracts.states import FailureClass, FilterReason, GroupState, Purpose, RolloutState
from orchestrator.pool import leases, results, run_end
from orchestrator.pool.dispatch import dispatch_other
from orchestrator.pool.tables import (
    rewards,
    transitions,
)
from orchestrator.roles.conclude import conclude_group
from tests import builders
from tests.integration.pool.attempts import AUTHOR, expire, fail, reaped, started, succeed
from tests.integration.pool.rig import (
    OWNER,
    context_of,
    counter,
    ended,
    group_state,
    record,
    report,
    rollout_row,
    running,
    small,
    take,
    verify,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def test_a_member_lost_to_infrastructure_leaves_baseline_and_batch_and_gets_no_reward(
    engine: AsyncEngine,
) -> None:
    run, context, held = await started(engine, members=4, max_attempts=1)
    await fail(context, held[0])
    for lease, reward in zip(held[1:], (1.0, 0.0, 0.0), strict=True):
        await succeed(context, run, lease, reward)
    assert (await group_state(engine, held[0].group_id))[0] is GroupState.READY
    async with engine.connect() as connection:
        rows = (await connection.execute(select(rewards).order_by(rewards.c.rollout_id))).all()
    assert [row.rollout_id for row in rows] == [lease.rollout_id for lease in held[1:]]
    assert all(row.baseline == pytest.approx(sum(r.total for r in rows) / 3) for row in rows)
    assert [row.performance for row in rows] == [1.0, 0.0, 0.0]


async def test_a_verifier_that_fails_is_tried_again_and_then_costs_the_member_not_a_reward(
    engine: AsyncEngine,
) -> None:
    run, context, [held, other] = await started(engine, max_attempts=2)
    await succeed(context, run, other, 1.0)
    steps = AUTHOR.trajectory(held, run.name, AUTHOR.ids(5, 5))
    await record(engine, run, steps)
    assert await report(context, ended(run.name, held, steps))
    await verify(context, held.rollout_id, None)
    row = await rollout_row(engine, held.rollout_id)
    assert (row.state, row.attempt, row.lease_epoch, row.verify_tries) == ("finished", 1, 3, 1)
    await verify(context, held.rollout_id, None)
    row = await rollout_row(engine, held.rollout_id)
    assert (row.state, row.failure_class) == ("lost", "verifier_failure")
    assert await group_state(engine, held.group_id) == (GroupState.FILTERED, FilterReason.TOO_FEW)
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(rewards)) == 0


async def test_a_verifiers_lease_that_runs_out_is_a_try(engine: AsyncEngine) -> None:
    run, context, [held, _] = await started(engine)
    assert await report(context, ended(run.name, held, [], digest=""))
    async with engine.begin() as connection:
        assert await leases.lease(
            connection, run.run_id, held.rollout_id, 2, OWNER, 60.0, before=RolloutState.FINISHED
        )
    await expire(engine, held.rollout_id)
    await reaped(context)
    row = await rollout_row(engine, held.rollout_id)
    assert (row.state, row.lease_epoch, row.verify_tries) == ("finished", 3, 1)
    late = VerdictReached(
        run=run.name,
        rollout=held.rollout_id,
        attempt=1,
        epoch=2,
        failure_class=FailureClass.COMPLETED,
        reward=1.0,
    )
    async with engine.begin() as connection:
        assert not await results.verdict(connection, run.run_id, late)
    assert await counter(engine, run, "verdicts_stale") == 1


@pytest.mark.parametrize("train_timeouts", [False, True])
async def test_an_agents_own_timeout_is_trained_only_by_configuration(
    engine: AsyncEngine, train_timeouts: bool
) -> None:
    config = small().model_copy(
        update={"rollout": small().rollout.model_copy(update={"train_timeouts": train_timeouts})}
    )
    run = await builders.make_run(engine, config)
    context = context_of(engine, run)
    [held, _] = await running(engine, run)
    await fail(context, held, FailureClass.TIMEOUT)
    row = await rollout_row(engine, held.rollout_id)
    assert (row.state, row.failure_class) == ("finished" if train_timeouts else "lost", "timeout")


async def test_an_evaluation_counts_those_that_ran_out_of_time(engine: AsyncEngine) -> None:
    filtering = small().rollout.model_copy(update={"train_timeouts": False})
    run = await builders.make_run(engine, small().model_copy(update={"rollout": filtering}))
    context = context_of(engine, run)
    [group_id] = await builders.accepted(engine, run, ["e"], size=1, purpose=Purpose.EVAL)
    async with engine.begin() as connection:
        [assigned] = await dispatch_other(connection, run.run_id, 4)
        held = await take(connection, assigned.rollout_id)
        assert held is not None
    await fail(context, held, FailureClass.TIMEOUT)
    await verify(context, held.rollout_id, 0.0)
    assert await group_state(engine, group_id) == (GroupState.SCORED, None)
    async with engine.connect() as connection:
        assert (await connection.scalars(select(rewards.c.performance))).all() == [0.0]


async def test_equal_performance_is_zero_signal_with_its_rewards_kept_and_no_advantages(
    engine: AsyncEngine,
) -> None:
    run, context, held = await started(engine)
    for lease in held:
        await succeed(context, run, lease, 1.0)
    assert await group_state(engine, held[0].group_id) == (GroupState.FILTERED, FilterReason.ZERO_SIGNAL)
    async with engine.connect() as connection:
        kept = (await connection.execute(select(rewards.c.performance, rewards.c.advantage))).all()
        assert kept == [(1.0, None), (1.0, None)]


@pytest.mark.parametrize(("pinned", "state"), [(0, GroupState.SCORED), (1, GroupState.FILTERED)])
async def test_an_evaluation_by_another_version_than_the_pinned_one_is_void(
    engine: AsyncEngine, pinned: int, state: GroupState
) -> None:
    run = await builders.make_run(engine, small())
    context = context_of(engine, run)
    [group_id] = await builders.accepted(
        engine, run, ["e"], size=1, purpose=Purpose.EVAL, pinned_version=pinned
    )
    async with engine.begin() as connection:
        [assigned] = await dispatch_other(connection, run.run_id, 8)
        lease = await take(connection, assigned.rollout_id)
    assert lease is not None and lease.pinned_version == pinned
    await succeed(context, run, lease, 1.0)
    reason = None if state is GroupState.SCORED else FilterReason.WRONG_VERSION
    assert await group_state(engine, group_id) == (state, reason)


async def test_two_last_members_that_end_at_once_conclude_their_group_exactly_once(
    engine: AsyncEngine,
) -> None:
    run, context, held = await started(engine)
    verdicts_of = []
    for lease, reward in zip(held, (1.0, 0.0), strict=True):
        assert await report(context, ended(run.name, lease, [], digest=""))
        async with engine.begin() as connection:
            assert await leases.lease(
                connection, run.run_id, lease.rollout_id, 2, OWNER, 60.0, before=RolloutState.FINISHED
            )
        verdicts_of.append(
            VerdictReached(
                run=run.name,
                rollout=lease.rollout_id,
                attempt=1,
                epoch=2,
                failure_class=FailureClass.COMPLETED,
                reward=reward,
            )
        )
    both_written = anyio.Event()
    written = 0

    async def say(event: VerdictReached) -> None:
        nonlocal written
        async with engine.begin() as connection:
            assert await results.verdict(connection, run.run_id, event)
            written += 1
            if written == 2:
                both_written.set()
            await both_written.wait()  # neither sees the other's verdict yet
            await conclude_group(connection, context, held[0].group_id)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for event in verdicts_of:
                tasks.start_soon(say, event)
    assert (await group_state(engine, held[0].group_id))[0] is GroupState.READY
    async with engine.connect() as connection:
        ready = select(func.count()).where(transitions.c.kind == "group", transitions.c.to_state == "ready")
        assert await connection.scalar(ready) == 1
        assert (await connection.scalars(select(rewards.c.revision))).all() == [1, 1]


async def test_a_run_that_ends_leaves_no_rollout_to_run_again(engine: AsyncEngine) -> None:
    run, context, held = await started(engine)
    async with engine.begin() as connection:
        assert await run_end.filter_open(connection, run.run_id) == 1
    assert await group_state(engine, held[0].group_id) == (GroupState.FILTERED, FilterReason.RUN_ENDED)
    assert not await report(context, ended(run.name, held[0], []))
    await reaped(context)
    for lease in held:
        assert (await rollout_row(engine, lease.rollout_id)).state == RolloutState.LOST
