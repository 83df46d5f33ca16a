"""A write that is delayed at its failpoint until its lease has run out and another worker has taken over: refused, counted, and nothing changes.

The delays of the tier `failpoints` are shorter than a lease. Here a delay lasts until the other worker is there. Leases last for hours; SQL
moves the end of the one that runs out.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.journal import Journal
from orchestrator.contracts.events import VerdictReached
from orchestrator.contracts.states import FailureClass, RolloutState
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool import leases
from orchestrator.pool.leases import Lease
from orchestrator.pool.transact import transact
from orchestrator.roles.ingest import ingest_results, ingest_verdicts
from orchestrator.roles.reaper import reaper
from orchestrator.runner.heartbeat import Heart
from orchestrator.runtime import failpoints
from tests import builders
from tests.integration.pool.rig import counter, ended, rollout_row, rollouts_of
from tests.integration.roles.rig import Stage, everything, playing, staged, until

pytestmark = [pytest.mark.anyio, pytest.mark.services]

TTL_S = 7200.0
RENEWED_S = 0.6  # a renewal that is over before it is committed
RUN_OUT = """UPDATE rollouts SET lease_until = now() - interval '1 second', graced_until = now() - interval '1 second'
 WHERE rollout_id = :id"""


class Delay:
    """A delay at one failpoint: `reached` is set when a task gets there; it continues once `over` is set."""

    def __init__(self) -> None:
        self.reached, self.over = anyio.Event(), anyio.Event()

    async def reach(self, point: str) -> None:
        if failpoints._obey(point):
            self.reached.set()
            await self.over.wait()


@pytest.fixture
def delayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Delay]:
    """The next arrival at a point."""

    def at(point: str) -> Delay:
        delay = Delay()
        (tmp_path / point).write_text("delay 3600")
        monkeypatch.setattr(failpoints, "directory", tmp_path)
        monkeypatch.setattr(failpoints, "reach", delay.reach)
        return delay

    return at


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    async with staged(engine, nats_server.url, rollout={"lease_ttl_s": TTL_S}) as stage:
        yield stage


async def queued(stage: Stage) -> int:
    """A rollout that no runner has leased."""
    engine = stage.context.engine
    [group] = await builders.accepted(engine, stage.run, ["task"], size=1)
    await builders.dispatch(engine, stage.run)
    async with engine.connect() as connection:
        [rollout] = await rollouts_of(connection, group)
    return rollout


async def leased(stage: Stage, rollout: int, owner: str, before: RolloutState = RolloutState.QUEUED) -> Lease:
    epoch = (await rollout_row(stage.context.engine, rollout)).lease_epoch

    async def take(connection: AsyncConnection) -> Lease | None:
        return await leases.lease(connection, stage.run.run_id, rollout, epoch, owner, TTL_S, before=before)

    held = await transact(stage.context.engine, take, at="lease.taken")
    assert held is not None
    return held


async def runs_out(stage: Stage, late: Lease) -> None:
    """As if its holder had been silent for its whole time, and for that of a reaper's grace."""
    async with stage.context.engine.begin() as connection:
        await connection.execute(text(RUN_OUT), {"id": late.rollout_id})


async def taken_over(stage: Stage, late: Lease, before: RolloutState = RolloutState.QUEUED) -> Lease:
    """Wait until the lease is taken back; then another worker has the next lease."""

    async def free() -> bool:
        row = await rollout_row(stage.context.engine, late.rollout_id)
        return bool(row.state == before and row.lease_epoch > late.epoch)

    await until(free)
    assert await counter(stage.context.engine, stage.run, "leases_expired") == 1
    return await leased(stage, late.rollout_id, "another", before)


async def counts(stage: Stage, name: str, number: int) -> bool:
    return await counter(stage.context.engine, stage.run, name) == number


async def test_a_result_that_is_delayed_until_another_runner_has_the_rollout_changes_nothing(
    stage: Stage, delayed: Callable[[str], Delay]
) -> None:
    late = await leased(stage, await queued(stage), "late")
    delay = delayed("publish.results.rollout.before")
    subject, run = subjects.results_rollout(stage.run.name), stage.run.name
    roles = [
        partial(reaper, stage.context),
        partial(ingest_results, stage.context),
        partial(stage.send, subject, ended(run, late, [], digest="")),
    ]
    async with playing(roles):
        await delay.reached.wait()
        await runs_out(stage, late)
        holder = await taken_over(stage, late)
        before = await everything(stage)
        delay.over.set()
        await until(lambda: counts(stage, "results_stale", 1))
        assert await everything(stage) == before
        await stage.send(subject, ended(run, holder, [], digest=""))
        await stage.reaches(1, "rollouts", state="finished", attempt=late.attempt + 1)
    assert await counts(stage, "results_stale", 1)


async def test_a_verdict_that_is_delayed_until_another_verifier_has_the_attempt_changes_nothing(
    stage: Stage, delayed: Callable[[str], Delay]
) -> None:
    rollout, run = await queued(stage), stage.run.name
    runner = await leased(stage, rollout, "runner")
    subject = subjects.results_verdict(run)

    def verdict(held: Lease, reward: float) -> VerdictReached:
        return VerdictReached(
            run=run,
            rollout=rollout,
            attempt=held.attempt,
            epoch=held.epoch,
            failure_class=FailureClass.COMPLETED,
            reward=reward,
        )

    async with playing([partial(ingest_results, stage.context), partial(ingest_verdicts, stage.context)]):
        await stage.send(subjects.results_rollout(run), ended(run, runner, [], digest=""))
        await stage.reaches(1, "rollouts", state="finished")
        late = await leased(stage, rollout, "late", RolloutState.FINISHED)
        delay = delayed("publish.results.verdict.before")
        async with playing(
            [partial(reaper, stage.context), partial(stage.send, subject, verdict(late, 0.25))]
        ):
            await delay.reached.wait()
            await runs_out(stage, late)
            holder = await taken_over(stage, late, RolloutState.FINISHED)
            before = await everything(stage)
            delay.over.set()
            await until(lambda: counts(stage, "verdicts_stale", 1))
            assert await everything(stage) == before
            await stage.send(subject, verdict(holder, 0.75))
            await stage.reaches(1, "rollouts", state="verified")
    async with stage.context.engine.connect() as connection:
        assert (await connection.scalars(text("SELECT reward FROM verdicts"))).all() == [0.75]


async def test_a_renewal_that_is_committed_after_the_time_that_it_gives_revives_nothing(
    stage: Stage, delayed: Callable[[str], Delay], tmp_path: Path
) -> None:
    engine = stage.context.engine
    late = await leased(stage, await queued(stage), "late")

    async def graced() -> bool:
        return (await rollout_row(engine, late.rollout_id)).graced_until is not None

    async with Journal.open(tmp_path / "journal") as journal, playing([partial(reaper, stage.context)]):
        await until(graced)  # the reaper gives no second grace
        heart = Heart(engine, "late", run_id=stage.run.run_id, ttl_s=RENEWED_S, journal=journal)
        delay = delayed("lease.renewed.before")
        with heart.holding(late.rollout_id, late.epoch) as scope:
            async with playing([heart.beat]):
                await delay.reached.wait()  # the renewal is written, and not committed
                await until(await after(engine, RENEWED_S))
                delay.over.set()
                await taken_over(stage, late)
                before = await everything(stage)
                cancelled = scope.cancel_called
                assert not cancelled
                await heart.beat()
                assert scope.cancel_called and await everything(stage) == before


async def after(engine: AsyncEngine, seconds: float) -> Callable[[], Awaitable[bool]]:
    """Whether it is so much later than now, by the database's clock."""
    async with engine.connect() as connection:
        end = await connection.scalar(
            text("SELECT clock_timestamp() + make_interval(secs => :s)"), {"s": seconds}
        )

    async def later() -> bool:
        async with engine.connect() as connection:
            return bool(await connection.scalar(text("SELECT clock_timestamp() > :end"), {"end": end}))

    return later
