"""`penstock scale` on Kubernetes: the data pool decides which runners of a Deployment go."""

import json
import secrets
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.deploy.home import Home, write_template
from orchestrator.runner.rollout_runner import serve_rollouts
from orchestrator.settings.config import load
from tests import builders
from tests.integration.cli.test_drain import penstock
from tests.integration.runner.fixtures import opens
from tests.integration.runner.rig import Opens
from tests.integration.runner.test_draining import SLOW, as_process
from tests.integration.runner.test_runners import PASSES
from tests.unit.cluster.rendered import CLUSTER

__all__ = ["opens"]
pytestmark = [pytest.mark.services, pytest.mark.anyio]


async def test_draining_replicas_of_a_deployment_go_first_and_dead_ones_are_not_waited_for(
    tmp_path: Path, database_url: str, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")
    write_template(tmp_path, f"r{secrets.token_hex(4)}", "")
    run = await builders.make_run(engine, load(Home.at(tmp_path).file))
    row = """INSERT INTO processes (run_id, host, process, pid, loops, draining, stopped, last_seen)
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


async def test_a_removed_runner_ends_its_attempts_before_it_is_stopped_and_nothing_is_started_twice(
    opens: Opens, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")  # nothing connects to it
    async with opens(slots=2) as rig:
        write_template(tmp_path, rig.context.run, "")
        worker = replace(rig.settings.worker, slots=1)
        stops = {name: anyio.CancelScope() for name in ("runner-0", "runner-1")}

        async def runner(name: str) -> None:
            own = replace(worker, journal=worker.journal.with_name(name), owner=name)
            with stops[name]:
                await as_process(name, partial(serve_rollouts, replace(rig.settings, worker=own)))

        for name in stops:
            rig.tasks.start_soon(runner, name)
        running = [await rig.submit(SLOW) for _ in stops]
        for rollout in running:
            await rig.state(rollout, "running", "finished")
        topology = tmp_path / "topology.toml"
        topology.write_text((CLUSTER / "topology.toml").read_text().replace("max_replicas = 4", ""))
        done = await penstock(
            tmp_path, "scale", str(topology), "runners=1", "-t", "systemd", "--json", "--write"
        )
        stopped = False
        found = next(
            line for line in done.stdout.splitlines() if line.startswith('{"counts"')
        )  # in the runners' log
        for step in json.loads(found)["steps"]:
            if step["argv"][:2] == ["penstock", "drain"]:
                assert step["argv"][2:4] == ["runner", "runner-1"]
                drained = await penstock(tmp_path, *step["argv"][1:4], "--wait")
                assert "the runner runner-1 is drained" in drained.stdout
            elif "disable --now penstock-first-runner-1.service" in step["argv"][-1]:
                (left,) = await rig.rows("SELECT count(*) AS n FROM rollouts WHERE lease_owner = 'runner-1'")
                assert left.n == 0
                stops["runner-1"].cancel()
                stopped = True
        assert stopped
        later = await rig.submit(PASSES)
        for rollout in (*running, later):
            await rig.state(rollout, "finished")
            (attempt,) = await rig.attempts(rollout)
            assert (attempt.epoch, attempt.failure_class) == (1, "completed")
        assert await rig.rows(
            "SELECT process FROM processes WHERE NOT stopped AND process LIKE 'runner%'"
        ) == [("runner-0",)]


async def test_a_missing_data_pool_is_reported_in_one_sentence(tmp_path: Path) -> None:
    write_template(tmp_path, "first", "")
    topology = tmp_path / "topology.toml"
    topology.write_text(
        (CLUSTER / "topology.toml").read_text().replace("max_replicas = 4", "max_replicas = 0")
    )
    done = await penstock(tmp_path, "scale", str(topology), "runners=1", "-t", "kubernetes", "--write")
    assert done.exit_code == 1 and "\n" not in str(done.exception)
    assert "set DATABASE_URL" in str(done.exception)
    assert "replicas = 1" not in topology.read_text()
