"""Rewards that take longer than PostgreSQL lets a transaction be silent: no verdict, lease or other group waits for them in vain."""

import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.pull import NatsDelivery
from orchestrator.bus.suspects import TRIES
from orchestrator.contracts.events import VerdictReached
from orchestrator.contracts.states import FailureClass, RolloutState
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool import leases
from orchestrator.pool.engine import open_engine
from orchestrator.pool.leases import Expired, Lease
from orchestrator.roles import conclude, consume, reaper, reward_threads
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.ingest import ingest_verdicts
from orchestrator.roles.reward import reward_group
from orchestrator.settings.timeouts import Timeouts, use
from tests.integration.pool.rig import OWNER, ended, group_state, report, rollout_row, running, verify
from tests.integration.roles.rig import Stage, playing, staged, until
from tests.waiting import eventually, stays_true_for

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    """A failed attempt is not repeated."""
    async with staged(
        engine, nats_server.url, queue={"max_attempts": 1}, reward={"speed_weight": 0.0}
    ) as stage:
        yield stage


@asynccontextmanager
async def impatiently(
    stage: Stage,
    database_url: str,
    role: Callable[[OrchestratorContext], Coroutine[Any, Any, None]],
    **timeouts: float,
) -> AsyncIterator[None]:
    """Run a role whose transactions PostgreSQL ends after a short silence."""
    with use(Timeouts(pool_idle_s=0.2, **timeouts)):
        async with (
            open_engine(database_url) as engine,
            playing([partial(role, replace(stage.context, engine=engine))]),
        ):
            yield


class Slow:
    """`reward_group`, which takes long for one group: until `go` is set, and at least 1 s, a silence that ends transactions."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.group_id = 0
        self.times = 0

    def __call__(self, group: Any, *rest: Any, **named: Any) -> Any:
        if group.group_id == self.group_id:
            self.times += 1
            time.sleep(1.0)  # noqa: TID251
            self.go.wait(20.0)
        return reward_group(group, *rest, **named)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    slow = Slow()
    monkeypatch.setattr(conclude, "reward_group", slow)
    return slow


RUN_OUT = """UPDATE rollouts SET lease_until = clock_timestamp() - interval '1 second', graced_until = clock_timestamp() - interval '1 second'
 WHERE rollout_id = :id"""
SAME_END = "UPDATE rollouts SET graced_until = lease_until WHERE rollout_id = :id"


async def run_out(stage: Stage, lease: Lease) -> None:
    """The lease has expired, and has had its grace."""
    async with stage.context.engine.begin() as connection:
        await connection.execute(text(RUN_OUT), {"id": lease.rollout_id})
        await connection.execute(text(SAME_END), {"id": lease.rollout_id})


async def is_group(stage: Stage, group_id: int, state: str) -> bool:
    return (await group_state(stage.context.engine, group_id))[0] == state


async def test_the_reaper_takes_back_other_leases_while_a_group_is_rewarded(
    stage: Stage, slow: Slow, database_url: str
) -> None:
    first = await running(stage.context.engine, stage.run, 3)
    second = await running(stage.context.engine, stage.run, 2, "another")
    for n, lease in enumerate(first[:2]):
        assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
        await verify(stage.context, lease.rollout_id, float(n))
    slow.group_id = first[0].group_id
    for lease in (first[2], *second):
        await run_out(stage, lease)
    async with impatiently(stage, database_url, reaper.reaper):
        await stage.reaches(2, "rollouts", group_id=second[0].group_id, state="lost")
        assert (await rollout_row(stage.context.engine, first[2].rollout_id)).state == "running"
        slow.go.set()
        await until(partial(is_group, stage, slow.group_id, "ready"))
    assert slow.times == 1 and await stage.count("rewards") == 2
    assert (await rollout_row(stage.context.engine, first[2].rollout_id)).state == "lost"


async def test_a_verdict_whose_group_takes_long_to_reward_is_kept_and_rewarded_once(
    stage: Stage, slow: Slow, database_url: str
) -> None:
    held = await running(stage.context.engine, stage.run, 2)
    slow.group_id = held[0].group_id
    slow.go.set()
    for lease in held:
        assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
    async with impatiently(stage, database_url, ingest_verdicts):
        await judge(stage, held)
        await until(partial(is_group, stage, slow.group_id, "ready"))
        await stage.emptied("RESULTS")
    assert await stage.count("dead_letters") == 0 and await stage.count("rewards") == 2
    assert slow.times == 1


async def test_the_last_verdicts_of_a_group_in_one_transaction_reward_it_once(
    stage: Stage, slow: Slow, database_url: str
) -> None:
    held = await running(stage.context.engine, stage.run, 2)
    slow.group_id = held[0].group_id
    slow.go.set()
    for lease in held:
        assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
    await judge(stage, held)
    async with impatiently(stage, database_url, ingest_verdicts):
        await until(partial(is_group, stage, slow.group_id, "ready"))
        await stage.emptied("RESULTS")
    assert slow.times == 1 and await stage.count("rewards") == 2


async def test_a_reapers_pass_waits_a_moment_for_all_slow_groups_together(
    stage: Stage, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, times = threading.Event(), 0

    def compute(group: Any, *rest: Any, **named: Any) -> Any:
        nonlocal times
        times += 1
        go.wait(20.0)
        return reward_group(group, *rest, **named)

    monkeypatch.setattr(conclude, "reward_group", compute)
    groups = [await running(stage.context.engine, stage.run, 3, f"t{n}") for n in range(3)]
    for leases_of in groups:
        for n, lease in enumerate(leases_of[:2]):
            assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
            await verify(stage.context, lease.rollout_id, float(n))
        await run_out(stage, leases_of[2])
    waited: list[float] = []
    wait = reward_threads._Computation.wait

    async def noted(self: Any, seconds: float) -> None:
        waited.append(seconds)
        await wait(self, seconds)

    monkeypatch.setattr(reward_threads._Computation, "wait", noted)
    with use(Timeouts(pool_idle_s=4.0)):
        async with stage.context.engine.begin() as connection:
            await reaper.reap(connection, stage.context)
    assert sum(waited) <= 4.0 * reward_threads.MOMENT + 1e-6 and waited[-1] <= 0.0
    await eventually(lambda: times == 3)
    go.set()


async def judge(stage: Stage, held: list[Lease]) -> None:
    """Lease the verifications of these rollouts, and send their verdicts: 0, 1, …"""
    for n, lease in enumerate(held):
        row = await rollout_row(stage.context.engine, lease.rollout_id)
        async with stage.context.engine.begin() as connection:
            verification = await leases.lease(
                connection,
                stage.context.run_id,
                lease.rollout_id,
                row.lease_epoch,
                OWNER,
                60.0,
                before=RolloutState.FINISHED,
            )
        assert verification is not None
        verdict = VerdictReached(
            run=stage.run.name,
            rollout=lease.rollout_id,
            attempt=verification.attempt,
            epoch=verification.epoch,
            failure_class=FailureClass.COMPLETED,
            reward=float(n % 2),
        )
        await stage.send(subjects.results_verdict(stage.run.name), verdict)


async def test_verdicts_of_other_groups_pass_one_whose_group_is_rewarded_slowly(
    stage: Stage, slow: Slow, database_url: str
) -> None:
    first = await running(stage.context.engine, stage.run, 2)
    others = [await running(stage.context.engine, stage.run, 2, f"t{n}") for n in range(3)]
    slow.group_id = first[0].group_id
    for lease in chain(first, *others):
        assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
    async with impatiently(stage, database_url, ingest_verdicts):
        await judge(stage, first)
        await eventually(lambda: slow.times == 1)
        for group in others:
            await judge(stage, group)
            await until(partial(is_group, stage, group[0].group_id, "ready"))
        slow.go.set()
        await until(partial(is_group, stage, slow.group_id, "ready"))
        await stage.emptied("RESULTS")
    assert slow.times == 1 and await stage.count("rewards") == 8
    assert await stage.count("dead_letters") == 0


async def test_more_slow_groups_than_are_rewarded_at_once_are_rewarded_once_each(
    stage: Stage, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_threads, "MAX_AT_ONCE", 2)
    lock, two = threading.Lock(), threading.Barrier(2)
    at_once, most, times = 0, 0, 0

    def compute(group: Any, *rest: Any, **named: Any) -> Any:
        nonlocal at_once, most, times
        with lock:
            at_once, times = at_once + 1, times + 1
            most = max(most, at_once)
        two.wait(60.0)
        with lock:
            at_once -= 1
        return reward_group(group, *rest, **named)

    monkeypatch.setattr(conclude, "reward_group", compute)
    groups = [await running(stage.context.engine, stage.run, 2, f"t{n}") for n in range(6)]
    for lease in chain(*groups):
        assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
    for group in groups:
        await judge(stage, group)
    async with impatiently(stage, database_url, ingest_verdicts):
        for group in groups:
            await until(partial(is_group, stage, group[0].group_id, "ready"))
        await stage.emptied("RESULTS")
    assert (times, most) == (6, 2)
    assert await stage.count("rewards") == 12 and await stage.count("dead_letters") == 0


async def test_a_consumer_that_holds_as_many_messages_as_it_may_takes_no_other_until_one_is_handled(
    stage: Stage, slow: Slow, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "MAX_HELD", 1)
    hold, holds = consume._Consuming._hold, 0

    def noted(*given: Any) -> None:
        nonlocal holds
        holds += 1
        hold(*given)

    monkeypatch.setattr(consume._Consuming, "_hold", noted)
    first = await running(stage.context.engine, stage.run, 2)
    second = await running(stage.context.engine, stage.run, 2, "another")
    slow.group_id = first[0].group_id
    for lease in (*first, *second):
        assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
    async with impatiently(stage, database_url, ingest_verdicts):
        await judge(stage, first)
        await eventually(lambda: holds == 1)
        await judge(stage, second)
        with anyio.move_on_after(1.0):
            await until(partial(is_group, stage, second[0].group_id, "ready"))
        assert not await is_group(stage, second[0].group_id, "ready")
        slow.go.set()
        for group in (first, second):
            await until(partial(is_group, stage, group[0].group_id, "ready"))
        await stage.emptied("RESULTS")
    assert await stage.count("rewards") == 4 and await stage.count("dead_letters") == 0


@pytest.mark.parametrize("in_work", [True, False])
async def test_a_verdict_that_waits_for_its_rewards_is_in_work_and_one_that_comes_again_waits_with_it(
    stage: Stage, slow: Slow, database_url: str, monkeypatch: pytest.MonkeyPatch, in_work: bool
) -> None:
    consumer, came = subjects.consume_results_verdict, 0
    monkeypatch.setattr(
        subjects,
        "consume_results_verdict",
        lambda run: replace(consumer(run), max_deliver=2 if in_work else 1_000),
    )
    hold = consume._Consuming._hold

    def noted(*given: Any) -> None:
        nonlocal came
        came += 1
        hold(*given)

    async def nothing(delivery: Any) -> None:
        """The bus does not learn that the message is in work."""

    monkeypatch.setattr(consume._Consuming, "_hold", noted)
    if not in_work:
        monkeypatch.setattr(NatsDelivery, "in_progress", nothing)
    held = await running(stage.context.engine, stage.run, 2)
    slow.group_id = held[0].group_id
    for lease in held:
        assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
    async with impatiently(stage, database_url, ingest_verdicts, bus_ack_wait_s=1.0):
        await judge(stage, held)
        await eventually(lambda: slow.times == 1)
        if in_work:
            await stays_true_for(4.0, lambda: came <= 1)
        else:
            await eventually(lambda: came >= 3)
        slow.go.set()
        await until(partial(is_group, stage, slow.group_id, "ready"))
        await stage.emptied("RESULTS")
    assert slow.times == 1 and await stage.count("dead_letters") == 0
    assert await stage.count("rewards") == 2


async def test_a_group_whose_rewards_never_come_is_dead_and_the_next_one_is_rewarded(
    stage: Stage, slow: Slow, database_url: str
) -> None:
    first = await running(stage.context.engine, stage.run, 2)
    second = await running(stage.context.engine, stage.run, 2, "another")
    slow.group_id = first[0].group_id
    for lease in (*first, *second):
        assert await report(stage.context, ended(stage.run.name, lease, [], digest=""))
    async with impatiently(stage, database_url, ingest_verdicts, rewards_s=0.5):
        await judge(stage, [*first, *second])
        await until(partial(is_group, stage, second[0].group_id, "ready"))
        await stage.emptied("RESULTS")
    slow.go.set()
    state, reason = await group_state(stage.context.engine, slow.group_id)
    longer = (
        "its rewards could not be computed: TimeoutError: they take longer than {} s (timeouts.rewards_s)"
    )
    assert state == "dead" and reason in (longer.format(0.5), longer.format(1))  # alone, or with the other


async def test_a_lease_at_which_postgres_ends_the_reapers_transactions_ends_only_its_own_group(
    stage: Stage, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await running(stage.context.engine, stage.run, 2)
    second = await running(stage.context.engine, stage.run, 2, "another")
    take_back = reaper._take_back
    tries = 0

    async def take(connection: AsyncConnection, context: OrchestratorContext, lease: Expired) -> None:
        nonlocal tries
        if lease.rollout_id == first[0].rollout_id:
            tries += 1
            time.sleep(0.5)  # noqa: TID251, ASYNC251
        await take_back(connection, context, lease)

    monkeypatch.setattr(reaper, "_take_back", take)
    for lease in (first[0], *second):
        await run_out(stage, lease)
    async with impatiently(stage, database_url, reaper.reaper):
        await stage.reaches(2, "rollouts", group_id=second[0].group_id, state="lost")
    state, reason = await group_state(stage.context.engine, first[0].group_id)
    assert state == "dead" and tries == 2 * TRIES
    assert reason == (
        "its lease could not be taken back: TransactionEnded: PostgreSQL ended its transactions, because nothing was sent for 0.2 s"
    )
