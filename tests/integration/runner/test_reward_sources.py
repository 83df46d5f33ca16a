"""The parts of a reward, from a task's files to the rows: its reference time, the verifier's process signals, tools that repeat themselves."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.show_text import rollout_head
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.queries.rollouts import rollout as rollout_of
from tests.integration.runner.rig import Rig, a_task, open_rig, runs, says

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

Opens = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def opens(database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path) -> Opens:
    @asynccontextmanager
    async def opened(**reward: Any) -> AsyncIterator[Rig]:
        async with open_rig(database_url, nats_server.url, directory, model, reward=reward) as rig:
            yield rig

    return opened


PAID = """SELECT w.t_base, w.t_base_origin, w.silent, w.process_by_signal, w.per_step, w.total, w.performance, w.beta, w.speed, w.alpha, w.process
            FROM reward_breakdown w WHERE rollout_id = :id"""


def judging(process: str) -> str:
    return f"echo '{process}' > /logs/verifier/process.json"


async def test_the_reference_time_of_a_task_is_what_its_speed_is_measured_against(opens: Opens) -> None:
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        known = a_task(says("done"), check="true", settings="[agent]\nreference_sec = 12.5")
        row = await rig.until(PAID, lambda row: True, id=await rig.submit(known))
        assert (row.t_base, row.t_base_origin) == (12.5, "reference")
        alone = await rig.submit(a_task(says("done"), check="true"))
        row = await rig.until(PAID, lambda row: True, id=alone)
        assert row.t_base_origin == "itself" and row.speed == pytest.approx(0.5)


async def test_what_the_verifier_says_of_the_process_is_kept_and_paid_where_a_setting_names_it(
    opens: Opens,
) -> None:
    named = {"plan": {"source": "verifier", "weight": 0.1}, "repeated_calls": {"weight": 0.03}}
    async with opens(process=named) as rig:
        rig.start_runner()
        rig.start_verifier()
        says_so = judging('{"plan": [1, -0.5], "style": 0.25}')
        task = a_task(runs("ls"), runs("ls"), says("done"), check=says_so)
        rollout = await rig.submit(task)
        row = await rig.until(PAID, lambda row: True, id=rollout)
        (verdict,) = await rig.rows("SELECT process FROM verdicts WHERE rollout_id = :id", id=rollout)
        assert verdict.process == {"plan": [1, -0.5], "style": 0.25}
        assert row.process_by_signal["plan"] == pytest.approx(0.05)
        assert row.process_by_signal["repeated_calls"] == pytest.approx(-0.03)
        assert "style" not in row.process_by_signal
        assert [step["paid"].get("plan") for step in row.per_step] == pytest.approx([0.1, -0.05, None])
        assert row.total == pytest.approx(row.performance + row.beta * row.speed + row.alpha * row.process)


async def test_the_named_numbers_of_a_task_are_kept_and_a_setting_names_the_one_that_is_its_performance(
    opens: Opens,
) -> None:
    numbers = """echo '{"tests": 0.25, "style": 3}' > /logs/verifier/reward.json"""
    named = a_task(says("done"), check=numbers, settings='[verifier]\nperformance = "tests"')
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(named)
        row = await rig.until(PAID, lambda row: True, id=rollout)
        assert row.performance == 0.25
        (verdict,) = await rig.rows(
            "SELECT reward, components FROM verdicts WHERE rollout_id = :id", id=rollout
        )
        assert (verdict.reward, verdict.components) == (0.25, {"tests": 0.25, "style": 3.0})
        async with rig.context.engine.connect() as connection:
            found = await rollout_of(connection, rig.context.run_id, rollout)
        assert "  components: style 3, tests 0.25" in list(rollout_head(found))
        unnamed = await rig.submit(a_task(says("done"), check=numbers))
        await rig.state(unnamed, "lost")
        (row,) = await rig.rows("SELECT reason FROM rollouts WHERE rollout_id = :id", id=unnamed)
        assert "call it 'reward', or name it in [verifier].performance, got 'tests', 'style'" in row.reason


@pytest.mark.parametrize("process", ['{"plan": 2}', '{"Plan!": 1}', "[1]", '{"plan": true}', '{"plan": "1"}'])
async def test_a_malformed_word_on_the_process_pays_nothing_and_is_noted_in_the_verdict(
    opens: Opens, process: str
) -> None:
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(a_task(says("done"), check=judging(process)))
        row = await rig.until(PAID, lambda row: True, id=rollout)
        assert row.performance == 1.0
        (verdict,) = await rig.rows("SELECT process, log FROM verdicts WHERE rollout_id = :id", id=rollout)
        assert verdict.process in (None, {})
        assert "/logs/verifier/process.json: " in verdict.log
        assert "plan" not in row.process_by_signal
