"""`stage.end_seconds` counts the seconds that passed, whatever the database's clock does."""

from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from orchestrator.contracts.states import RunState
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.runs import first_dispatch_age, state_of
from orchestrator.pool.transact import transact
from orchestrator.roles import run_end
from tests.integration.pool.rig import running
from tests.integration.roles.rig import Stage, playing, staged, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

# The first dispatch as it is to a clock that was set forward by so many hours.
STEP = "UPDATE groups SET dispatched = dispatched - make_interval(hours => :hours) WHERE run_id = :run AND seq = 0"
STAGE: dict[str, object] = {"end_seconds": 1800.0}


async def step(stage: Stage, hours: int) -> None:
    async with stage.flow.engine.begin() as connection:
        await connection.execute(text(STEP), {"run": stage.run.run_id, "hours": hours})


async def age(stage: Stage) -> float:
    async with stage.flow.engine.connect() as connection:
        return await first_dispatch_age(connection, stage.run.run_id)


async def look(stage: Stage, earlier: run_end.Age | None) -> run_end.Age:
    return await transact(
        stage.flow.engine, lambda c: run_end.steady_age(c, stage.run.run_id, earlier), at="run_end.commit"
    )


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_step_of_the_databases_clock_neither_ends_a_run_early_nor_prolongs_it(
    engine: AsyncEngine, nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    async with staged(engine, nats_server.url, stage=STAGE) as stage:
        await running(engine, stage.run, 2)
        looks: list[run_end.Age] = []
        steady = run_end.steady_age

        async def counted(*values: object) -> run_end.Age:
            looks.append(await steady(*values))  # type: ignore[arg-type]
            return looks[-1]

        async def looked(times: int) -> bool:
            return len(looks) >= times

        monkeypatch.setattr(run_end, "steady_age", counted)
        with capture_logs() as logs:
            async with playing([partial(run_end.run_end, stage.flow)]):
                await until(partial(looked, 2))
                await step(stage, hours)
                await until(partial(looked, len(looks) + 3))
            assert 0.0 < await age(stage) < 600.0
            async with engine.connect() as connection:
                assert await state_of(connection, stage.run.run_id) is RunState.ACTIVE
        (line,) = [line for line in logs if line["event"] == "run.clock_stepped"]
        assert line["seconds"] == pytest.approx(3600 * hours, abs=600)


async def test_of_two_orchestrators_one_moves_the_start(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url, stage=STAGE) as stage:
        assert (await look(stage, None)).age_s == 0.0
        await running(engine, stage.run, 2)
        one, other = await look(stage, None), await look(stage, None)
        await step(stage, 1)
        assert all([(await look(stage, each)).age_s < 600.0 for each in (one, other)])
        assert 0.0 < await age(stage) < 600.0


async def test_a_run_that_begins_between_two_looks_has_made_no_step(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url, stage=STAGE) as stage:
        before = await look(stage, None)
        await running(engine, stage.run, 2)
        await step(stage, 1)  # it began an hour ago
        assert (await look(stage, before)).age_s > 3600.0
