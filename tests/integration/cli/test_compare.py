"""`penstock compare`: two runs, each in its own directory with its own database."""

import json
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.stack import upgrade
from orchestrator.pool import batches
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.engine import open_engine
from orchestrator.pool.rewind import rewind
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.settings.config import Config
from tests import builders
from tests.integration.pool.rig import small
from tests.integration.queries.evaluations_rig import evaluated

pytestmark = [pytest.mark.services, pytest.mark.anyio]


def directory(at: Path, name: str, url: str) -> Path:
    at.mkdir()
    (at / "penstock.toml").write_text(f'[run]\nname = "{name}"\n[services]\ndatabase_url = "{url}"\n')
    return at


async def compare(*arguments: str) -> Result:
    return await anyio.to_thread.run_sync(partial(CliRunner().invoke, app, ["compare", *arguments]))


async def test_two_runs_of_two_databases_stand_side_by_side(
    engine: AsyncEngine, database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    await anyio.to_thread.run_sync(upgrade, empty_database_url)
    first = directory(tmp_path / "first", "same", database_url)
    second = directory(tmp_path / "second", "same", empty_database_url)
    config = Config.model_validate({"run": {"name": "same"}})
    run = await builders.make_run(engine, config)
    await evaluated(engine, run, "held", 0, {"coding": (1.0, 1.0)})
    async with open_engine(empty_database_url, size=1) as other:
        run = await builders.make_run(other, config)
        await evaluated(other, run, "held", 0, {"coding": (1.0, 0.0)})
        await evaluated(other, run, "partial", 0, {"coding": (1.0, 0.0, None)}, size=3)
    both = ("-c", str(first), "-c", str(second))
    done = await compare(*both)
    assert done.exit_code == 0, done.exception
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["first", "second"]  # both runs are called "same"
    [held] = [row for row in rows if row.startswith("held (held out)")]
    assert "100.0 % [34.2, 100.0] n=2, version 0" in held and "50.0 % [9.5, 90.5] n=2, version 0" in held
    [partial] = [row for row in rows if row.startswith("partial (held out)")]
    assert "n=2 of 3, version 0" in partial
    found = json.loads((await compare(*both, "--json", "--key", "loss")).stdout)
    assert [(each["run"], each["directory"]) for each in found] == [
        ("same", str(first)),
        ("same", str(second)),
    ]
    assert found[0]["means"] == {"loss": None}


async def test_train_steps_and_results_that_a_rewind_undid_are_not_counted(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small("rewound"))
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
    for number in (1, 2):
        await builders.ready_groups(engine, run, [f"{number}-{name}" for name in "ab"], builders.Author())
        new = NewVersion(version=number, parent=number - 1, path=f"/v{number}", manifest_sha="11")
        async with engine.begin() as connection:
            batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
            assert batch is not None
            steps = [{"loss": 0.1 * number}]
            assert await batches.commit(
                connection, run.run_id, run.name, batch=batch, new=new, metrics=steps, subject="policy.x"
            )
    for version, values in ((1, (1.0, 0.0)), (2, (1.0, 1.0))):
        await evaluated(engine, run, "held", version, {"coding": values})
    await evaluated(engine, run, "later", 2, {"coding": (1.0, 1.0)})
    async with engine.begin() as connection:
        await rewind(connection, run.run_id, 0, "policy.x", "why", lambda version: True)
    home = str(directory(tmp_path / "home", "rewound", database_url))
    done = await compare("-c", home, "-c", home, "--key", "loss")
    assert done.exit_code == 0, done.exception
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["train", "steps", "1", "1"] in rows and ["home", "0", "to", "1", "▁"] in rows
    held_out = [line for line in done.stdout.splitlines() if "(held out)" in line]
    assert len(held_out) == 1 and held_out[0].count("n=2, version 1") == 2, "version 2 was undone"


async def test_a_failed_comparison_is_reported_in_one_sentence(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    first = directory(tmp_path / "first", "first", database_url)
    away = directory(tmp_path / "away", "away", "postgresql://u:secret@127.0.0.1:1/x")
    await builders.make_run(engine, Config.model_validate({"run": {"name": "first"}}))
    for given, sentence in (
        (["-c", str(first)], "give two runs"),
        (["-c", str(first), "-c", str(away)], f"penstock up -c {away} --only web"),
        (["-c", str(first), "-c", str(first), "--key", "los"], "unknown key 'los'; known: reward"),
    ):
        done = await compare(*given)
        assert isinstance(done.exception, PenstockError) and sentence in str(done.exception), done.exception
        assert "secret" not in str(done.exception)
