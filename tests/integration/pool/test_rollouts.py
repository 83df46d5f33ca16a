"""Rollouts: leased once, fenced by their epoch, complete only when all is in, and never rewarded for an infrastructure failure."""

import anyio
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus import subjects
from orchestrator.contracts.events import ArtifactFile, StepMark, ToolCallTimed
from orchestrator.contracts.ids import b64
from orchestrator.contracts.states import GroupState, RolloutState
from orchestrator.pool import leases, results, run_end
from orchestrator.pool import (
    transitions as history,
)
from orchestrator.pool.leases import Lease
from orchestrator.pool.settled import MessageKey, MessageKind, settled
from orchestrator.pool.tables import (
    attempts,
    counters,
    dead_letters,
    rewards,
    rollouts,
    step_marks,
    tool_calls,
    transitions,
    verdicts,
)
from orchestrator.pool.transact import transact
from orchestrator.roles.complete import complete_reported
from tests import builders
from tests.integration.pool.attempts import AUTHOR, expire, fail, reaped, requeue, started, succeed
from tests.integration.pool.rig import (
    OWNER,
    context_of,
    counter,
    ended,
    group_state,
    owed,
    record,
    report,
    resealed,
    rollout_row,
    rollouts_of,
    running,
    small,
    take,
)

pytestmark = [pytest.mark.anyio, pytest.mark.services]


# --- leases ---------------------------------------------------------------------------------------------------


async def test_one_of_many_that_want_a_lease_gets_it(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    [group_id] = await builders.accepted(engine, run, ["a"], size=2)
    await builders.dispatch(engine, run)
    async with engine.connect() as connection:
        rollout_id = (await rollouts_of(connection, group_id))[0]
    won: list[Lease] = []

    async def want() -> None:
        async with engine.begin() as connection:
            if (lease := await take(connection, rollout_id)) is not None:
                won.append(lease)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(want)
    assert len(won) == 1
    async with engine.begin() as connection:
        for epoch in (0, 2):
            assert await leases.lease(connection, run.run_id, rollout_id, epoch, "other", 60.0) is None


async def test_a_heartbeat_extends_what_its_owner_holds_and_nothing_else(engine: AsyncEngine) -> None:
    _, context, [mine, lost] = await started(engine)
    before = (await rollout_row(engine, mine.rollout_id)).lease_until
    async with engine.begin() as connection:
        await leases.retry(connection, lost.rollout_id, RolloutState.RUNNING, 1, reason="test", delay_s=0)
    epochs = {mine.rollout_id: 1, lost.rollout_id: 1}
    async with engine.begin() as connection:
        assert await leases.heartbeat(connection, context.run_id, OWNER, epochs, 600.0) == {mine.rollout_id}
        assert await leases.heartbeat(connection, context.run_id, "other", epochs, 600.0) == set()
        assert await leases.heartbeat(connection, context.run_id, OWNER, {mine.rollout_id: 2}, 600.0) == set()
        assert await leases.heartbeat(connection, context.run_id, OWNER, {}, 600.0) == set()
    assert (await rollout_row(engine, mine.rollout_id)).lease_until > before
    await reaped(context)
    assert (await rollout_row(engine, mine.rollout_id)).state == RolloutState.RUNNING


async def test_a_lease_that_ran_out_becomes_a_new_attempt_and_the_old_holder_is_a_zombie(
    engine: AsyncEngine,
) -> None:
    run, context, [held, _] = await started(engine)
    zombie = AUTHOR.trajectory(held, run.name, AUTHOR.ids(5, 5))
    await expire(engine, held.rollout_id)
    await reaped(context)
    row = await rollout_row(engine, held.rollout_id)
    assert (row.state, row.attempt, row.lease_epoch, row.lease_owner) == ("queued", 2, 2, None)
    [assigned] = [body for _, body in await owed(engine, run) if body.get("rollout") == held.rollout_id]
    assert (assigned["attempt"], assigned["epoch"]) == (2, 2)
    assert not await report(context, ended(run.name, held, zombie))
    assert await counter(engine, run, "results_stale") == await counter(engine, run, "leases_expired") == 1
    again = await requeue(context, held.rollout_id)
    assert (again.attempt, again.epoch, again.seed) == (2, 2, held.seed)
    assert (await group_state(engine, held.group_id))[0] is GroupState.DISPATCHED


async def test_after_an_outage_every_lease_gets_one_full_time_to_live(engine: AsyncEngine) -> None:
    run, context, [held, long] = await started(engine)
    await expire(engine, held.rollout_id)
    before = (await rollout_row(engine, long.rollout_id)).lease_until
    async with engine.begin() as connection:
        await leases.grace(connection, run.run_id, 30.0)
        left = await connection.scalar(
            select(func.extract("epoch", rollouts.c.lease_until - func.now())).where(
                rollouts.c.rollout_id == held.rollout_id
            )
        )
    assert left is not None and 29 < left <= 30.5
    assert (await rollout_row(engine, long.rollout_id)).lease_until == before
    await reaped(context)
    assert await counter(engine, run, "leases_expired") == 0


async def test_a_lease_that_was_not_renewed_since_its_extension_is_not_extended_again(
    engine: AsyncEngine,
) -> None:
    run, _, [dead, alive] = await started(engine)
    await expire(engine, dead.rollout_id)
    # Looks of reapers that have all just started; `alive` has a holder that renews, and is late as well.
    for _ in range(3):
        await expire(engine, alive.rollout_id)
        async with engine.begin() as connection:
            await leases.grace(connection, run.run_id, 0.0)
    await expire(engine, alive.rollout_id)
    async with engine.begin() as connection:
        await leases.grace(connection, run.run_id, 30.0)
        lost = await leases.expired(connection, run.run_id)
    assert [lease.rollout_id for lease in lost] == [dead.rollout_id]
    async with engine.begin() as connection:
        assert await leases.heartbeat(connection, run.run_id, OWNER, {dead.rollout_id: 1}, 0.0) == {
            dead.rollout_id
        }
        await leases.grace(connection, run.run_id, 30.0)
        assert await leases.expired(connection, run.run_id) == [], "its owner has renewed it"


# --- completion -----------------------------------------------------------------------------------------------


async def test_it_is_finished_once_result_and_steps_are_in_whichever_came_first(engine: AsyncEngine) -> None:
    run, context, [early, late] = await started(engine)
    steps = {
        lease.rollout_id: AUTHOR.trajectory(lease, run.name, AUTHOR.ids(5, 5)) for lease in (early, late)
    }
    await record(engine, run, steps[early.rollout_id])
    assert await report(context, ended(run.name, early, steps[early.rollout_id]))
    await record(engine, run, steps[late.rollout_id][:1])
    assert await report(context, ended(run.name, late, steps[late.rollout_id]))
    assert (await rollout_row(engine, late.rollout_id)).state == RolloutState.REPORTED
    assert not await report(context, ended(run.name, late, steps[late.rollout_id])), "a repeat"
    await record(engine, run, steps[late.rollout_id][1:])
    async with engine.begin() as connection:
        await complete_reported(connection, context, [early.rollout_id, late.rollout_id])
    for lease in (early, late):
        row = await rollout_row(engine, lease.rollout_id)
        assert (row.state, row.lease_epoch, row.failure_class) == ("finished", 2, "completed")
    verifications = [
        body for subject, body in await owed(engine, run) if subject == subjects.work_verify(run.name)
    ]
    assert [body["epoch"] for body in verifications] == [2, 2]


async def test_a_result_keeps_marks_artifacts_and_tool_calls_without_what_text_cannot_hold(
    engine: AsyncEngine,
) -> None:
    run, context, [held, _] = await started(engine)
    steps = AUTHOR.trajectory(held, run.name, AUTHOR.ids(5, 5))
    await record(engine, run, steps)
    result = ended(
        run.name,
        held,
        steps,
        marks=[StepMark(1, "undelivered\x00")],
        answer="7\x00",
        log="\ud800",
        artifacts=[ArtifactFile(path="a/b.txt", body=b64(b"\x00raw")), ArtifactFile(path="gone", body=None)],
        tool_calls=[ToolCallTimed(step=0, call=0, name="bash\x00", start=0.5, end=1.0, exit=0, bytes=12)],
    )
    assert await report(context, result)
    async with engine.connect() as connection:
        answer, files = await results.artifacts_of(connection, held.rollout_id, 1)
        assert answer == "7\ufffd" and files == [
            ArtifactFile(path="a/b.txt", body=b64(b"\x00raw")),
            ArtifactFile(path="gone", body=None),
        ]
        assert await connection.scalar(select(step_marks.c.reason)) == "undelivered\ufffd"
        assert await connection.scalar(select(tool_calls.c.name)) == "bash\ufffd"


@pytest.mark.parametrize("fault", ["another digest", "no digest", "fewer announced", "a broken chain"])
async def test_steps_that_are_not_what_was_announced_are_run_again(engine: AsyncEngine, fault: str) -> None:
    run, context, [held, _] = await started(engine)
    steps = AUTHOR.trajectory(held, run.name, AUTHOR.ids(5, 5))
    if fault == "a broken chain":
        steps[2] = resealed(steps[2], chain_sha="cd" * 32)
    await record(engine, run, steps)
    result = ended(run.name, held, steps)
    match fault:
        case "another digest":
            result = ended(run.name, held, steps, digest="ab" * 32)
        case "no digest":
            result = ended(run.name, held, steps, digest="")
        case "fewer announced":
            result = ended(run.name, held, steps[:1])
    assert await report(context, result)
    row = await rollout_row(engine, held.rollout_id)
    assert (row.state, row.attempt, row.lease_epoch) == ("queued", 2, 2)
    assert await counter(engine, run, "digests_wrong") == 1


async def test_announced_steps_that_never_arrive_are_waited_for_then_run_again(engine: AsyncEngine) -> None:
    run, context, [held, _] = await started(engine)
    steps = AUTHOR.trajectory(held, run.name, AUTHOR.ids(5, 5))
    assert await report(context, ended(run.name, held, steps))
    await reaped(context)
    assert (await rollout_row(engine, held.rollout_id)).state == RolloutState.REPORTED
    await expire(engine, held.rollout_id)
    await reaped(context)
    assert (await rollout_row(engine, held.rollout_id)).attempt == 2
    # A runner that took no step announces none: complete at once.
    again = await requeue(context, held.rollout_id)
    assert await report(context, ended(run.name, again, [], digest=""))
    assert (await rollout_row(engine, held.rollout_id)).state == RolloutState.FINISHED


async def test_a_message_that_names_another_run_or_attempt_moves_nothing(engine: AsyncEngine) -> None:
    run, context, [held, _] = await started(engine)
    other = context_of(engine, await builders.make_run(engine, small("other")))
    assert not await report(other, ended(run.name, held, []))
    assert not await report(context, ended(run.name, held, [], attempt=2))
    assert (await rollout_row(engine, held.rollout_id)).state == RolloutState.RUNNING


# --- failures -------------------------------------------------------------------------------------------------


async def test_used_up_attempts_are_poison_and_a_group_of_poison_is_dead(engine: AsyncEngine) -> None:
    _, context, held = await started(engine, max_attempts=2)
    for lease in held:
        await fail(context, lease)
        await fail(context, await requeue(context, lease.rollout_id))
    state, reason = await group_state(engine, held[0].group_id)
    assert state is GroupState.DEAD
    assert reason == "poison: 2 attempts failed; the last one: the sandbox is gone"
    async with engine.connect() as connection:
        for table in (verdicts, rewards):
            assert not await connection.scalar(select(func.count()).select_from(table))
    row = await rollout_row(engine, held[0].rollout_id)
    assert (row.state, row.failure_class) == ("lost", "poison")


async def test_an_attempt_that_a_stopping_runner_gives_back_is_not_a_failure(engine: AsyncEngine) -> None:
    _, context, [lease, _] = await started(engine, max_attempts=1)
    for attempt in (2, 3):  # however often it is stopped
        async with engine.begin() as connection:
            held = {lease.rollout_id: lease.epoch}
            assert await leases.give_back(connection, context.run_id, "another owner", held) == 0
            assert await leases.give_back(connection, context.run_id, OWNER, held) == 1
        await reaped(context)
        lease = await requeue(context, lease.rollout_id)
        assert lease.attempt == attempt
    await expire(engine, lease.rollout_id)
    await reaped(context)
    row = await rollout_row(engine, lease.rollout_id)
    assert (row.state, row.failure_class) == ("lost", "poison")
    assert row.reason == "1 attempts failed; the last one: the runner's lease ran out"
    async with engine.connect() as connection:
        query = select(attempts.c.failure_class, attempts.c.ended, attempts.c.reason).order_by(
            attempts.c.attempt
        )
        ends = (await connection.execute(query.where(attempts.c.rollout_id == lease.rollout_id))).all()
    # A rollout that died with its runner could not report that itself.
    assert [end.failure_class for end in ends] == ["cancelled", "cancelled", "infra_failure"]
    assert all(end.ended is not None for end in ends) and ends[-1].reason == row.reason


async def test_a_refused_message_is_settled_for_its_sender_so_that_its_lease_may_run_out(
    engine: AsyncEngine,
) -> None:
    run, _, [lease, other] = await started(engine)
    keys = [
        MessageKey(rollout_id=held.rollout_id, epoch=held.epoch, idx=0, kind=MessageKind.RESULT)
        for held in (lease, other)
    ]
    async with engine.begin() as connection:
        assert await settled(connection, run.run_id, keys) == set()
        letter = {"subject": "x", "reason": "x", "deliveries": 1, "body": b"", "msg_id": str(keys[0])}
        await connection.execute(dead_letters.insert().values(run_id=run.run_id, stream="RESULTS", **letter))
        assert await settled(connection, run.run_id, keys) == {keys[0]}


# --- together --------------------------------------------------------------------------------------------------


async def test_roles_at_work_together_never_deadlock(engine: AsyncEngine) -> None:
    """Verdicts, heartbeats, the reaper and the run's end on the same rows: one order of locks."""
    run = await builders.make_run(engine, small(capacity=40))
    context = context_of(engine, run)
    held = [lease for n in range(6) for lease in await running(engine, run, 4, f"t{n}")]

    async def beat(epochs: dict[int, int]) -> None:
        for _ in range(12):
            async with engine.begin() as connection:
                await leases.heartbeat(connection, run.run_id, OWNER, epochs, 60.0)

    async def work(mine: list[Lease]) -> None:
        for lease in mine:
            await succeed(context, run, lease, float(lease.member % 2))

    async def look() -> None:
        for _ in range(6):
            await reaped(context)
            async with engine.begin() as connection:
                await leases.grace(connection, run.run_id, 30.0)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            epochs = {lease.rollout_id: 1 for lease in held}
            tasks.start_soon(beat, epochs)
            tasks.start_soon(beat, dict(reversed(epochs.items())))
            tasks.start_soon(look)
            for part in range(3):
                tasks.start_soon(work, held[part::3])
    async with engine.begin() as connection:
        await run_end.filter_open(connection, run.run_id)
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert await connection.scalar(text(deadlocks)) == 0
        ready = select(func.count()).where(transitions.c.kind == "group", transitions.c.to_state == "ready")
        assert await connection.scalar(ready) == 6


async def test_a_deadlock_is_tried_again(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small())
    async with engine.begin() as connection:
        for name in ("rewinds", "steps_stale"):
            await history.count(connection, run.run_id, name)
    tried = 0
    locked: set[str] = set()
    both = anyio.Event()

    async def cross(one: str, other: str) -> None:
        async def work(connection: AsyncConnection) -> None:
            nonlocal tried
            tried += 1
            await connection.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
            await history.count(connection, run.run_id, one)
            locked.add(one)
            if len(locked) == 2:
                both.set()
            await both.wait()
            await history.count(connection, run.run_id, other)

        await transact(engine, work, at="tests")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for names in (("rewinds", "steps_stale"), ("steps_stale", "rewinds")):
                tasks.start_soon(cross, *names)
    assert tried == 3
    async with engine.connect() as connection:
        assert (await connection.scalars(select(counters.c.value).order_by(counters.c.name))).all() == [3, 3]
