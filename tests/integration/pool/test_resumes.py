"""Resumes in the data pool: when an attempt may continue under another lease, the changes of that, and when a new attempt starts instead."""

from typing import Any

import msgspec
import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.events import StepMark, StepRecorded, ToolCallTimed
from orchestrator.contracts.states import FailureClass, Replay, RolloutState
from orchestrator.pool import leases, tables
from orchestrator.pool.ingest import Fate, decode_step, ingest
from orchestrator.pool.leases import Lease
from orchestrator.pool.runs import StoredRun, get_run
from orchestrator.roles.complete import complete_reported
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.reaper import reap
from orchestrator.roles.retry_policy import run_again
from tests import builders
from tests.integration.pool.rig import (
    OWNER,
    Tree,
    context_of,
    counter,
    ended,
    owed,
    record,
    report,
    rollout_row,
    running,
    small,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def at_work(
    engine: AsyncEngine, *, steps: int = 3, replayable: bool = True, max_resumes: int = 3
) -> tuple[OrchestratorContext, Lease, list[StepRecorded]]:
    """A rollout whose runner has recorded `steps` of four."""
    config = small()
    section = config.rollout.model_copy(update={"max_resumes": max_resumes, "retry_delay_s": 0.0})
    run = await builders.make_run(engine, config.model_copy(update={"rollout": section}))
    lease = (await running(engine, run))[0]
    written = [grown.event for grown in Tree(5).grow(run.name, lease, 4)]
    if steps:
        await record(engine, run, written[:steps])
    await session(engine, lease, replayable)
    return context_of(engine, run), lease, written


async def session(engine: AsyncEngine, lease: Lease, replayable: bool = True) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            insert(tables.sessions).values(
                run_id=lease.run_id,
                rollout_id=lease.rollout_id,
                attempt=lease.attempt,
                epoch=lease.epoch,
                token_hash=f"{lease.rollout_id}:{lease.epoch}".encode(),
                budget={},
                expires=func.now(),
                replayable=replayable,
            )
        )


async def lost(context: OrchestratorContext, rollout_id: int, *, given_back: bool = False) -> Any:
    """The lease runs out, or is given back; returns the rollout's row once it was taken back."""
    async with context.engine.begin() as connection:
        if given_back:
            row = await rollout_row(context.engine, rollout_id)
            epochs = {rollout_id: row.lease_epoch}
            assert await leases.give_back(connection, context.run_id, OWNER, epochs) == 1
        else:
            await connection.execute(
                text("UPDATE rollouts SET lease_until = now() - interval '1 s' WHERE rollout_id = :id"),
                {"id": rollout_id},
            )
    async with context.engine.begin() as connection:
        await reap(connection, context)
    return await rollout_row(context.engine, rollout_id)


async def leased(context: OrchestratorContext, rollout_id: int) -> Lease:
    row = await rollout_row(context.engine, rollout_id)
    async with context.engine.begin() as connection:
        lease = await leases.lease(connection, context.run_id, rollout_id, row.lease_epoch, OWNER, 60.0)
    assert lease is not None
    return lease


async def run_of(context: OrchestratorContext) -> StoredRun:
    async with context.engine.connect() as connection:
        return await get_run(connection, context.run)


async def rows(context: OrchestratorContext, table: str) -> list[Any]:
    async with context.engine.connect() as connection:
        query = select(tables.metadata.tables[table]).order_by(text("epoch"))
        return list((await connection.execute(query)).all())


async def attempts(context: OrchestratorContext, rollout_id: int) -> list[Any]:
    return [row for row in await rows(context, "attempts") if row.rollout_id == rollout_id]


async def test_a_lease_that_runs_out_keeps_the_attempt_raises_the_epoch_and_writes_why(
    engine: AsyncEngine,
) -> None:
    context, lease, _ = await at_work(engine)
    row = await lost(context, lease.rollout_id)
    assert (row.state, row.attempt, row.lease_epoch, row.lease_owner) == ("queued", 1, 2, None)
    (resume,) = await rows(context, "resumes")
    assert (resume.epoch, resume.attempt, resume.steps, resume.replay) == (2, 1, 3, None)
    assert resume.reason == "the runner's lease ran out" and not resume.given_back
    (attempt,) = await attempts(context, lease.rollout_id)
    assert (attempt.ended, attempt.failure_class) == (None, None)
    again = {"run": context.run, "rollout": lease.rollout_id, "attempt": 1, "epoch": 2}
    assert [body for _, body in await owed(engine, await run_of(context)) if body["epoch"] == 2] == [again]


async def test_steps_of_the_old_epoch_are_refused_and_those_of_the_new_one_go_on_after_the_last(
    engine: AsyncEngine,
) -> None:
    context, lease, written = await at_work(engine)
    await lost(context, lease.rollout_id)
    await leased(context, lease.rollout_id)
    late, on = written[3], msgspec.structs.replace(written[3], epoch=2)
    for step, fate in ((late, Fate.STALE), (on, Fate.NEW)):
        async with engine.begin() as connection:
            done = await ingest(connection, context.run_id, [decode_step(step)])
        assert list(done.fates) == [fate]
    assert not await report(context, ended(context.run, lease, written)), "the zombie's result is refused too"
    result = ended(context.run, lease, written, epoch=2, replay=Replay.CONTINUED, replayed=3)
    assert await report(context, result)
    assert (await rollout_row(engine, lease.rollout_id)).state == "finished"
    (resume,) = await rows(context, "resumes")
    assert (resume.replay, resume.replayed) == ("continued", 3)


@pytest.mark.parametrize(
    "how",
    [{"steps": 0}, {"replayable": False}, {"max_resumes": 0}],
    ids=["no step", "scaffold", "turned off"],
)
async def test_without_steps_or_a_replayable_scaffold_a_new_attempt_begins(
    engine: AsyncEngine, how: dict[str, Any]
) -> None:
    context, lease, _ = await at_work(engine, **how)
    row = await lost(context, lease.rollout_id)
    assert (row.attempt, row.lease_epoch) == (2, 2) and await rows(context, "resumes") == []
    (attempt,) = await attempts(context, lease.rollout_id)
    assert attempt.failure_class == FailureClass.INFRA_FAILURE


async def test_an_attempt_is_not_resumed_from_a_gap_among_the_stored_steps(engine: AsyncEngine) -> None:
    context, lease, written = await at_work(engine, steps=0)
    async with engine.begin() as connection:
        await ingest(connection, context.run_id, [decode_step(written[i]) for i in (0, 2)])
    assert (await lost(context, lease.rollout_id)).attempt == 2


async def test_resumes_are_bounded_over_all_attempts_and_those_given_back_do_not_count(
    engine: AsyncEngine,
) -> None:
    context, lease, _ = await at_work(engine, max_resumes=2)
    seen = []
    for given_back in (False, True, False, True, False):
        row = await lost(context, lease.rollout_id, given_back=given_back)
        seen.append((row.attempt, row.lease_epoch))
        await session(engine, await leased(context, lease.rollout_id))
    assert seen == [(1, 2), (1, 3), (1, 4), (1, 5), (2, 6)]
    assert [row.replay for row in await rows(context, "resumes")] == ["interrupted"] * 4
    first, second = await attempts(context, lease.rollout_id)
    assert first.failure_class == FailureClass.INFRA_FAILURE and second.failure_class is None


async def test_a_reported_failure_is_resumed_once_its_steps_are_in_and_only_if_its_runner_says_so(
    engine: AsyncEngine,
) -> None:
    context, lease, written = await at_work(engine, steps=2)
    result = ended(
        context.run,
        lease,
        written[:3],
        failure_class=FailureClass.INFRA_FAILURE,
        reason="sandbox: gone",
        resumable=True,
    )
    assert await report(context, result)
    assert (await rollout_row(engine, lease.rollout_id)).state == "reported", "a step is on its way"
    async with engine.begin() as connection:
        await ingest(connection, context.run_id, [decode_step(written[2])])
    async with engine.begin() as connection:
        await complete_reported(connection, context, [lease.rollout_id])
    row = await rollout_row(engine, lease.rollout_id)
    assert (row.state, row.attempt, row.lease_epoch) == ("queued", 1, 2)
    (resume,) = await rows(context, "resumes")
    assert (resume.reason, resume.steps) == ("sandbox: gone", 3)
    again = await leased(context, lease.rollout_id)
    await session(engine, again)
    failed = ended(
        context.run,
        again,
        written[:3],
        failure_class=FailureClass.INFRA_FAILURE,
        reason="replay: it parted",
        replay=Replay.DIVERGED,
        replayed=1,
    )
    assert await report(context, failed)
    assert (await rollout_row(engine, lease.rollout_id)).attempt == 2
    (resume,) = await rows(context, "resumes")
    assert (resume.replay, resume.replayed) == ("diverged", 1)
    first = (await attempts(context, lease.rollout_id))[0]
    assert (first.failure_class, first.reason) == (FailureClass.INFRA_FAILURE, "replay: it parted")
    assert await counter(engine, await run_of(context), "resumes_diverged") == 1


async def test_marks_of_an_attempt_that_may_go_on_wait_for_the_result_that_ends_it(
    engine: AsyncEngine,
) -> None:
    context, lease, written = await at_work(engine)
    marks = [StepMark(2, "undelivered")]
    failed = ended(
        context.run, lease, written[:3], failure_class=FailureClass.INFRA_FAILURE, resumable=True, marks=marks
    )
    assert await report(context, failed)
    async with engine.connect() as connection:
        assert not await connection.scalar(select(func.count()).select_from(tables.step_marks))


async def test_tools_that_the_resumed_attempt_executes_again_replace_those_that_the_failure_cut_off(
    engine: AsyncEngine,
) -> None:
    context, lease, written = await at_work(engine)

    def called(step: int, exit_code: int | None, size: int) -> ToolCallTimed:
        return ToolCallTimed(step=step, call=0, name="bash", start=1.0, end=2.0, exit=exit_code, bytes=size)

    failed = ended(
        context.run,
        lease,
        written[:3],
        failure_class=FailureClass.INFRA_FAILURE,
        resumable=True,
        tool_calls=[called(1, 0, 7), called(2, None, 0)],
    )
    assert await report(context, failed)
    again = await leased(context, lease.rollout_id)
    await session(engine, again)
    done = ended(
        context.run,
        again,
        written[:3],
        replay=Replay.CONTINUED,
        replayed=3,
        tool_calls=[called(1, 0, 8), called(2, 127, 4096)],
    )
    assert await report(context, done)
    async with engine.connect() as connection:
        calls = tables.tool_calls.c
        query = select(calls.idx, calls.exit_code, calls.bytes).order_by(calls.idx)
        assert (await connection.execute(query)).all() == [(1, 0, 8), (2, 127, 4096)]


async def test_a_lost_race_changes_nothing(engine: AsyncEngine) -> None:
    context, lease, _ = await at_work(engine)
    async with engine.begin() as connection:
        await run_again(
            connection, context, lease.rollout_id, 7, RolloutState.RUNNING, "an old epoch", resumable=True
        )
    row = await rollout_row(engine, lease.rollout_id)
    assert (row.state, row.attempt, row.lease_epoch) == ("running", 1, 1)
    assert await rows(context, "resumes") == []
