"""Which ends count as a failure, the cost of a failure, and the work that a run's end waits for."""

from pathlib import Path

import pytest
import structlog.testing
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.states import FailureClass, GroupState, Purpose, RolloutState
from orchestrator.pool import leases, run_end, tables
from orchestrator.pool.dispatch import dispatch_other
from orchestrator.pool.leases import Lease
from orchestrator.pool.runs import begin_end, finish_end
from orchestrator.pool.transact import transact
from orchestrator.roles.retry_policy import run_again
from orchestrator.runtime import failpoints
from orchestrator.runtime.metrics import measuring
from tests import builders
from tests.integration.pool.attempts import expire, fail, reaped, requeue, started
from tests.integration.pool.rig import (
    OWNER,
    context_of,
    ended,
    group_state,
    record,
    report,
    rollout_row,
    rollouts_of,
    running,
    small,
    verify,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services]

AUTHOR = builders.Author()


async def leased_to_verify(engine: AsyncEngine, rollout_id: int) -> Lease:
    row = await rollout_row(engine, rollout_id)
    async with engine.begin() as connection:
        lease = await leases.lease(
            connection, row.run_id, rollout_id, row.lease_epoch, OWNER, 60.0, before=RolloutState.FINISHED
        )
    assert lease is not None
    return lease


async def test_a_verification_that_a_stopping_verifier_runner_gives_back_does_not_count_as_a_try(
    engine: AsyncEngine,
) -> None:
    run, context, [lease, _] = await started(engine, max_attempts=2)
    steps = AUTHOR.trajectory(lease, run.name, AUTHOR.ids(5, 5))
    await record(engine, run, steps)
    assert await report(context, ended(run.name, lease, steps))
    for _ in range(3):  # however often it is stopped
        held = await leased_to_verify(engine, lease.rollout_id)
        async with engine.begin() as connection:
            assert await leases.give_back(connection, run.run_id, OWNER, {held.rollout_id: held.epoch}) == 1
        await reaped(context)
        row = await rollout_row(engine, lease.rollout_id)
        assert (row.state, row.verify_tries, row.lease_epoch) == ("finished", 0, held.epoch + 1)
        assert row.not_before <= row.changed, "giving it back needs no pause"
    for tries in (1, 2):  # but a death counts
        await leased_to_verify(engine, lease.rollout_id)
        await expire(engine, lease.rollout_id)
        await reaped(context)
        assert (await rollout_row(engine, lease.rollout_id)).verify_tries == tries
    row = await rollout_row(engine, lease.rollout_id)
    assert (row.state, row.failure_class) == ("lost", FailureClass.VERIFIER_FAILURE)


@pytest.mark.parametrize("point", ["reaper.commit.before", "reaper.commit.after"])
async def test_a_retry_is_counted_once_however_often_its_transaction_is_repeated(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    _, context, [lease, _] = await started(engine, max_attempts=4)
    monkeypatch.setattr(failpoints, "directory", tmp_path)
    (tmp_path / point).write_text("raise")
    tried = 0

    async def work(connection: AsyncConnection) -> None:
        nonlocal tried
        tried += 1
        await run_again(
            connection, context, lease.rollout_id, lease.epoch, RolloutState.RUNNING, "its sandbox died"
        )

    with measuring() as process, structlog.testing.capture_logs() as lines:
        await transact(engine, work, at="reaper.commit")
    counted = process.registry.get_sample_value(
        "penstock_retries_total", {"kind": "attempt", "failure_class": "infra_failure"}
    )
    assert (tried, counted) == (2, 1)
    assert [line["event"] for line in lines if line["event"] != "pool.retry"] == ["rollout.retry"]


async def test_retries_wait_twice_as_long_each_time_and_keep_their_position_in_the_queue(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, small(max_attempts=4))
    context = context_of(engine, run)
    held = (await running(engine, run, name="first"))[0]
    await running(engine, run, name="second")
    waits = []
    for _ in range(3):
        await fail(context, held)
        row = await rollout_row(engine, held.rollout_id)
        waits.append((row.not_before - row.changed).total_seconds())
        held = await requeue(context, held.rollout_id)
    first = context.config.rollout.retry_delay_s
    assert waits == pytest.approx([first, 2 * first, 4 * first], abs=0.2)
    async with engine.connect() as connection:
        query = select(tables.groups.c.submission, tables.groups.c.seq, tables.groups.c.state)
        rows = (await connection.execute(query.order_by(tables.groups.c.seq))).all()
    assert [tuple(row) for row in rows] == [("first", 0, "dispatched"), ("second", 1, "dispatched")]
    assert held.attempt == 4


async def test_a_run_ends_once_what_it_accepted_to_evaluate_is_evaluated(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    context = context_of(engine, run)
    [trained] = await builders.accepted(engine, run, ["t"], size=2)
    [evaluated] = await builders.accepted(engine, run, ["e"], size=1, purpose=Purpose.EVAL)
    async with engine.begin() as connection:
        assert await begin_end(connection, run.run_id, "a person ended it")
        await run_end.filter_open(connection, run.run_id)
        assert not await finish_end(connection, run.run_id)
        (rollout_id,) = await rollouts_of(connection, evaluated)
    assert (await group_state(engine, trained))[0] is GroupState.FILTERED
    async with engine.begin() as connection:
        assert await dispatch_other(connection, run.run_id, 4), "an ending run still dispatches it"
        lease = await leases.lease(connection, run.run_id, rollout_id, 1, OWNER, 60.0)
    assert lease is not None
    steps = AUTHOR.trajectory(lease, run.name, AUTHOR.ids(5, 5))
    await record(engine, run, steps)
    assert await report(context, ended(run.name, lease, steps))
    async with engine.begin() as connection:
        assert not await finish_end(connection, run.run_id)
    await verify(context, rollout_id, 1.0)
    assert (await group_state(engine, evaluated))[0] is GroupState.SCORED
    async with engine.begin() as connection:
        assert await finish_end(connection, run.run_id)
