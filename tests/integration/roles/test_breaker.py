"""The circuit breaker: while the platform fails most attempts nothing is dispatched, nothing is lost, and admission opens again by itself."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.dispatch import ended_lately
from orchestrator.roles.dispatcher import Breaker, dispatcher
from orchestrator.roles.intake import Intake
from tests.integration.roles.rig import Stage, playing, staged

pytestmark = [pytest.mark.services, pytest.mark.anyio]

WINDOW_S = 60.0  # as long as a test
QUEUE: dict[str, object] = {"breaker_attempts": 6, "breaker_rate": 0.5, "breaker_window_s": WINDOW_S}


async def attempts(stage: Stage, failure_class: str, count: int, *, seconds_ago: float = 0.0) -> None:
    """So many ended attempts, as results and the reaper write them; on a rollout of a task that is long over."""
    statement = text(
        "INSERT INTO attempts (run_id, rollout_id, attempt, epoch, failure_class, ended)"
        " SELECT :run, r.rollout_id, (SELECT coalesce(max(attempt), 1) FROM attempts WHERE rollout_id = r.rollout_id) + n, 1,"
        " :class, now() - make_interval(secs => :ago)"
        " FROM generate_series(1, :count) n, (SELECT min(rollout_id) AS rollout_id FROM rollouts WHERE run_id = :run) r"
    )
    async with stage.context.engine.begin() as connection:
        await connection.execute(
            statement, {"run": stage.run.run_id, "class": failure_class, "count": count, "ago": seconds_ago}
        )


async def resumed(stage: Stage, *, seconds_ago: float) -> None:
    """A resume after a failure of the platform."""
    statement = text(
        "INSERT INTO resumes (run_id, rollout_id, attempt, epoch, steps, reason, given_back, at)"
        " SELECT :run, min(rollout_id), 1, 10 + (SELECT count(*) FROM resumes), 1, 'why', false,"
        " now() - make_interval(secs => :ago) FROM rollouts WHERE run_id = :run"
    )
    async with stage.context.engine.begin() as connection:
        await connection.execute(statement, {"run": stage.run.run_id, "ago": seconds_ago})


async def test_nothing_is_dispatched_while_most_attempts_fail_and_then_everything(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url, queue=QUEUE) as stage:
        async with playing([Intake(stage.context, ["shell"]).run, lambda: dispatcher(stage.context)]):
            await stage.submit("first")
            await stage.reaches(1, "groups", state="dispatched")
            await attempts(stage, "infra_failure", 5)
            await attempts(stage, "completed", 5)
            await stage.reaches(1, "counters", name="admission_halted")
            await stage.submit("second", "third")
            await stage.reaches(2, "groups", state="accepted")
            async with stage.context.engine.begin() as connection:
                # Rows are immutable.
                await connection.execute(text("SET LOCAL session_replication_role = replica"))
                await connection.execute(
                    text("UPDATE attempts SET ended = ended - make_interval(secs => :s)"), {"s": WINDOW_S + 1}
                )
            # As if the window had slid on; groups accepted until now are dispatched.
            await stage.reaches(3, "groups", state="dispatched")
        assert await stage.count("counters", name="admission_halted", value=1) == 1


async def test_few_attempts_and_failures_of_the_policy_halt_nothing(
    engine: AsyncEngine, nats_server: EmbeddedNats
) -> None:
    async with staged(engine, nats_server.url, queue=QUEUE) as stage:
        async with playing([Intake(stage.context, ["shell"]).run, lambda: dispatcher(stage.context)]):
            await stage.submit("first")
            await stage.reaches(1, "groups", state="dispatched")
        await attempts(stage, "infra_failure", 5)
        assert not await Breaker(stage.context).check(), "five attempts say nothing"
        await attempts(stage, "policy_failure", 3)
        await attempts(stage, "timeout", 3)
        await attempts(stage, "infra_failure", 50, seconds_ago=2 * WINDOW_S)
        assert not await Breaker(stage.context).check()
        await attempts(stage, "infra_failure", 1)
        assert await Breaker(stage.context).check()
        await attempts(stage, "infra_failure", 50, seconds_ago=-3600)  # older than a step back of the clock
        await resumed(stage, seconds_ago=0)
        await resumed(stage, seconds_ago=-3600)
        await resumed(stage, seconds_ago=2 * WINDOW_S)
        async with engine.connect() as connection:
            assert await ended_lately(connection, stage.run.run_id, WINDOW_S) == (13, 7)
            assert await ended_lately(connection, stage.run.run_id + 1, WINDOW_S) == (0, 0)
