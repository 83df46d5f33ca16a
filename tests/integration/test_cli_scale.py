"""`penstock scale` on Kubernetes: which runners of a Deployment go is asked of the data pool."""

import json
import secrets
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.config import load
from orchestrator.flow.rollout_runner import serve_rollouts
from orchestrator.home import Home, write_template
from tests import builders
from tests.integration.pool_rig import engine
from tests.integration.test_cli_drain import penstock
from tests.integration.test_draining import SLOW, as_process
from tests.integration.test_runners import PASSES, Opens, directory, model, opens
from tests.unit.cluster.rendered import CLUSTER

__all__ = ["directory", "engine", "model", "opens"]
pytestmark = [pytest.mark.services, pytest.mark.anyio]


async def test_of_a_deployment_those_go_first_that_drain_already_and_no_dead_one_is_waited_for(
    tmp_path: Path, database_url: str, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")
    write_template(tmp_path, f"r{secrets.token_hex(4)}", "")
    run = await builders.make_run(engine, load(Home.at(tmp_path).file))
    row = """INSERT INTO processes (run_id, host, process, pid, loops, draining, stopped, heard)
             SELECT :run, host, process, 7, '[]', CASE WHEN drains THEN now() END, stopped, now() - make_interval(mins => silent)
             FROM (VALUES ('pod-a', 'runner', false, false, 0), ('pod-b', 'runner', false, false, 0), ('pod-c', 'runner', true, false, 0),
                          ('pod-d', 'runner', false, true, 0), ('pod-e', 'runner', false, false, 60), ('pod-f', 'verifier', true, false, 0))
                  AS p (host, process, drains, stopped, silent)"""
    async with engine.begin() as connection:
        await connection.execute(text(row), {"run": run.run_id})
    topology = tmp_path / "topology.toml"
    topology.write_text(
        (CLUSTER / "topology.toml").read_text().replace("max_replicas = 4", "max_replicas = 0")
    )
    done = await penstock(tmp_path, "scale", str(topology), "runners=1", "-t", "kubernetes", "--json")
    assert done.exit_code == 0, done.exception
    found = [step["argv"] for step in json.loads(done.stdout)["steps"]]
    assert [step[3] for step in found if step[:2] == ["penstock", "drain"]] == [
        "runner@pod-c",
        "runner@pod-a",
    ]
    assert [step[5] for step in found if "annotate" in step] == ["pod-c", "pod-a"]


async def test_a_runner_that_goes_has_ended_what_it_had_before_it_is_stopped_and_nothing_is_begun_twice(
    opens: Opens, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")  # nobody asks for it
    async with opens(slots=2) as rig:
        write_template(tmp_path, rig.flow.run, "")
        worker = replace(rig.settings.worker, slots=1)
        stops = {name: anyio.CancelScope() for name in ("runner-0", "runner-1")}

        async def runner(name: str) -> None:
            own = replace(worker, journal=worker.journal.with_name(name), owner=name)
            with stops[name]:
                await as_process(name, partial(serve_rollouts, replace(rig.settings, worker=own)))

        for name in stops:
            rig.tasks.start_soon(runner, name)
        begun = [await rig.submit(SLOW) for _ in stops]
        for rollout in begun:
            await rig.state(rollout, "running", "finished")
        topology = tmp_path / "topology.toml"
        topology.write_text((CLUSTER / "topology.toml").read_text().replace("max_replicas = 4", ""))
        done = await penstock(
            tmp_path, "scale", str(topology), "runners=1", "-t", "systemd", "--json", "--write"
        )
        stopped = False
        found = next(
            line for line in done.stdout.splitlines() if line.startswith('{"counts"')
        )  # among what runners log
        for step in json.loads(found)["steps"]:
            if step["argv"][:2] == ["penstock", "drain"]:
                assert step["argv"][2:4] == ["runner", "runner-1"]
                said = await penstock(tmp_path, *step["argv"][1:4], "--wait")
                assert "the runner runner-1 is drained" in said.stdout
            elif "disable --now penstock-first-runner-1.service" in step["argv"][-1]:
                (left,) = await rig.rows("SELECT count(*) AS n FROM rollouts WHERE lease_owner = 'runner-1'")
                assert left.n == 0
                stops["runner-1"].cancel()
                stopped = True
        assert stopped
        later = await rig.submit(PASSES)
        for rollout in (*begun, later):
            await rig.state(rollout, "finished")
            (attempt,) = await rig.attempts(rollout)
            assert (attempt.epoch, attempt.failure_class) == (1, "completed")
        assert await rig.rows(
            "SELECT process FROM processes WHERE NOT stopped AND process LIKE 'runner%'"
        ) == [("runner-0",)]


async def test_without_a_data_pool_it_is_said_in_one_sentence(tmp_path: Path) -> None:
    write_template(tmp_path, "first", "")
    topology = tmp_path / "topology.toml"
    topology.write_text(
        (CLUSTER / "topology.toml").read_text().replace("max_replicas = 4", "max_replicas = 0")
    )
    done = await penstock(tmp_path, "scale", str(topology), "runners=1", "-t", "kubernetes", "--write")
    assert done.exit_code == 1 and "\n" not in str(done.exception)
    assert "set DATABASE_URL" in str(done.exception)
    assert "replicas = 1" not in topology.read_text()
