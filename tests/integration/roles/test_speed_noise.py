"""The speed noise is measured by replays of a recorded rollout and kept as a row, without a loop of its own."""

import json
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from statistics import stdev

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.contracts.events import RolloutFinished, StepRecorded
from orchestrator.contracts.states import FailureClass
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool import speed_noise, tables
from orchestrator.pool.leases import Lease
from orchestrator.roles.speed_noise import LABEL
from tests import builders
from tests.integration.pool import rig as pool_rig
from tests.integration.roles.rig import Runners, Stage, playing, staged

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

TIMES = (4.0, 5.0, 4.5, 5.5, 4.2, 4.8, 5.1, 4.4, 4.9, 4.1)


class TimedRunners(Runners):
    """Runners whose replays take TIMES; the first `failing` end with a failure."""

    failing = 0

    def ended(self, lease: Lease, steps: list[StepRecorded]) -> RolloutFinished:
        seconds = TIMES[lease.member % len(TIMES)]
        failure = FailureClass.CANCELLED if lease.member < self.failing else FailureClass.COMPLETED
        return pool_rig.ended(self._stage.run.name, lease, steps, agent_s=seconds, failure_class=failure)


class SkilledRunners(Runners):
    """Runners that always succeed, the second member of a group `apart` times as fast as the first."""

    apart = 1.0

    def ended(self, lease: Lease, steps: list[StepRecorded]) -> RolloutFinished:
        seconds = 60.0 / self.apart**lease.member
        return pool_rig.ended(self._stage.run.name, lease, steps, agent_s=seconds)

    def reward(self, lease: Lease) -> float:
        return 1.0


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    reward: dict[str, object] = {"zero_signal": "returns"}
    async with staged(engine, nats_server.url, reward=reward) as stage:
        await stage.serves(0)
        yield stage


async def newest(stage: Stage) -> float | None:
    async with stage.context.engine.connect() as connection:
        return await speed_noise.newest(connection, stage.run.run_id, "shell")


@pytest.mark.parametrize("failing", [0, 2])
async def test_a_success_is_replayed_ten_times_and_the_spread_of_eight_or_more_times_is_kept(
    stage: Stage, failing: int
) -> None:
    train = Runners(stage)
    replays = TimedRunners(stage, pool=subjects.POOL_EVAL)
    replays.failing, times = failing, TIMES[failing:]
    async with playing([*stage.core(), *train.roles(), *replays.roles()]):
        await stage.submit("a")
        await stage.reaches(1, "groups", label=LABEL, state="scored")
        assert await newest(stage) == pytest.approx(stdev(map(math.log, times)), rel=1e-6)
        # The next success measures nothing: the row is recent.
        await stage.submit("b")
        await stage.reaches(1, "groups", submission="b", state="ready")
        assert await stage.count("groups", label=LABEL) == 1
    query = (
        select(tables.groups.c.size, tables.groups.c.purpose, tables.tasks.c.body, tables.speed_noise)
        .join(tables.tasks, tables.tasks.c.task_id == tables.groups.c.task_id)
        .join(tables.speed_noise, tables.speed_noise.c.group_id == tables.groups.c.group_id)
    )
    async with stage.context.engine.connect() as connection:
        row = (await connection.execute(query)).one()
    assert (row.size, row.purpose, row.replays) == (10, "record", len(times))
    assert row.seconds == pytest.approx(math.exp(sum(map(math.log, times)) / len(times)), rel=1e-6)
    script = json.loads(row.body["files"]["record/script.json"])
    assert script == [{"content": "done", "reasoning": None, "tool_calls": None, "generate": True}] * 2


async def test_replays_that_fail_give_no_result_and_are_tried_three_times_within_the_interval(
    stage: Stage,
) -> None:
    train = Runners(stage)
    replays = TimedRunners(stage, pool=subjects.POOL_EVAL)
    replays.failing = 3
    async with playing([*stage.core(), *train.roles(), *replays.roles()]):
        for n in range(4):
            await stage.submit(f"s{n}")
            await stage.reaches(1, "groups", submission=f"s{n}", state="ready")
            await stage.reaches(min(n + 1, 3), "groups", label=LABEL, done=True)
            async with (
                stage.context.engine.begin() as connection
            ):  # the trainer takes it: there is room again
                await connection.execute(
                    update(tables.groups)
                    .where(tables.groups.c.submission == f"s{n}")
                    .values(state="filtered", reason="cancelled")
                )
    assert await newest(stage) is None
    assert await stage.count("speed_noise") == 3


@pytest.mark.parametrize("reward", [{"zero_signal": "performance"}, {"speed_weight": 0.0}])
async def test_nothing_is_measured_where_no_group_trains_on_speed_alone(
    engine: AsyncEngine, nats_server: EmbeddedNats, reward: dict[str, object]
) -> None:
    async with staged(engine, nats_server.url, reward={"zero_signal": "returns"} | reward) as stage:
        await stage.serves(0)
        async with playing([*stage.core(), *Runners(stage).roles()]):
            await stage.submit("a")
            await stage.reaches(1, "groups", submission="a", state="ready")
        assert await stage.count("groups") == 1


async def test_a_group_of_equal_performance_trains_on_its_times_where_they_differ_by_three_times_the_noise(
    stage: Stage,
) -> None:
    train = SkilledRunners(stage)
    replays = TimedRunners(stage, pool=subjects.POOL_EVAL)

    async def concluded(submission: str, state: str) -> str | None:
        await stage.submit(submission)
        await stage.reaches(1, "groups", submission=submission, state=state)
        query = (
            select(tables.rewards.c.silent)
            .join(tables.rollouts, tables.rollouts.c.rollout_id == tables.rewards.c.rollout_id)
            .join(tables.groups, tables.groups.c.group_id == tables.rollouts.c.group_id)
            .where(tables.groups.c.submission == submission)
            .distinct()
        )
        async with stage.context.engine.connect() as connection:
            silent: str | None = (await connection.scalars(query)).one()
            return silent

    async with playing([*stage.core(), *train.roles(), *replays.roles()]):
        train.apart = 30.0
        assert await concluded("before", "filtered") == "equal performance; speed noise not measured"
        await stage.reaches(1, "groups", label=LABEL, state="scored")
        train.apart = 1.2
        assert (
            await concluded("within", "filtered")
            == "equal performance; speed differs by less than 3 x its noise"
        )
        train.apart = 30.0
        assert await concluded("beyond", "ready") is None


async def test_a_measurement_that_cannot_begin_loses_only_itself(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, pool_rig.small())
    context, author = pool_rig.context_of(engine, run), builders.Author(turns=1)
    reward = context.config.reward.model_copy(update={"noise_replays": 100_000})  # of an older release
    context = replace(context, config=context.config.model_copy(update={"reward": reward}))
    leases = await pool_rig.running(engine, run)
    for lease, performance in zip(leases, (1.0, 0.0), strict=True):
        written = author.trajectory(lease, run.name, author.ids(8, 9))
        await pool_rig.record(engine, run, written)
        assert await pool_rig.report(context, pool_rig.ended(run.name, lease, written))
        await pool_rig.verify(context, lease.rollout_id, performance)
    assert await pool_rig.group_state(engine, leases[0].group_id) == ("ready", None)
    assert await pool_rig.counter(engine, run, "measurements_failed") == 1
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(tables.rewards)) == 2
        assert await connection.scalar(select(func.count()).select_from(tables.groups)) == 1
