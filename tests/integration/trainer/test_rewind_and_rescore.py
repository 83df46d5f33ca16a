"""`penstock rewind --rescore`: the freed groups are verified again before any trainer can take one."""

import json
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from sqlalchemy import select, text, update
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import write_template
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.tables import groups, tasks
from orchestrator.tasks.harbor import Task
from tests.builders import Author, ready_groups
from tests.integration.audit.audited import no_violations
from tests.integration.trainer.rig import Pool, model, pool
from trainer.loop import train_batches
from trainer.phases import NoBatch

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("trainer")]

HACKED = "echo 1 > /logs/verifier/reward.txt"
CORRECTED = "test -s answer.txt && echo 1 > /logs/verifier/reward.txt"


def edition(directory: Path, tests: str) -> Task:
    """Task `hello`, whose directory has these tests."""
    files = {
        "task.toml": '[metadata]\nname = "hello"\ndomain = "coding"\n',
        "instruction.md": "write hi",
        "tests/test.sh": tests,
    }
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    return Task.from_files({name: content.encode() for name, content in files.items()})


async def trained(pool: Pool, task: Task, names: str) -> StoredRun:
    """A run whose groups of these names are trained, two in a batch; the first two are of `task`."""
    run = await pool.run(trainer={"keep_checkpoints": 9, "parts": 1})
    made = await ready_groups(pool.engine, run, list(names), Author())
    async with pool.engine.begin() as connection:
        packed = {
            "sha": bytes.fromhex(task.content_hash),
            "name": task.name,
            "body": task.to_message(),
            "settings": task.settings.model_dump(mode="json"),
        }
        first = select(groups.c.task_id).where(groups.c.group_id == made[0]).scalar_subquery()
        await connection.execute(update(tasks).where(tasks.c.task_id == first).values(packed))
        await connection.execute(update(groups).where(groups.c.group_id.in_(made[:2])).values(task_id=first))
    await train_batches(await pool.trainer(run), len(names) // 2)
    return run


@pytest.fixture
def home(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATABASE_URL", pool.url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")  # it publishes nothing there itself
    return write_template(tmp_path / "home", "test", "").parent


async def command(home: Path, *arguments: str) -> Any:
    call = lambda: CliRunner().invoke(app, ["rewind", "-c", str(home), *arguments])
    return await anyio.to_thread.run_sync(call)


async def states(pool: Pool) -> str:
    rows = await pool.rows(select(groups.c.state).order_by(groups.c.group_id))
    return " ".join(row.state for row in rows)


async def test_no_trainer_takes_a_group_of_a_hacked_task_before_the_corrected_tests_judged_it(
    pool: Pool, home: Path, tmp_path: Path
) -> None:
    run = await trained(pool, edition(tmp_path / "was", HACKED), "abcd")
    trainer = await pool.trainer(run)
    now = edition(tmp_path / "now", CORRECTED)
    done = await command(home, "--to-batch", "-1", "--tests", str(tmp_path / "now"), "--reason", "hacked")
    assert done.stdout.splitlines() == [
        "undone: batches 0, 1; 4 groups are ready again; version 3 has the first weights and supersedes 1, 2",
        "8 rollouts of 2 groups are judged again; left alone: none",
    ]
    assert await states(pool) == "dispatched dispatched ready ready"
    bodies = (
        select(tasks.c.body).join(groups, groups.c.task_id == tasks.c.task_id).order_by(groups.c.group_id)
    )
    assert [row.body for row in await pool.rows(bodies)][:2] == [now.to_message()] * 2
    assert await trainer.claim() is NoBatch.REWOUND
    await trainer.resume()
    await trainer.claim()
    assert (await states(pool)).startswith("dispatched dispatched")
    reasons = await pool.rows(
        text("SELECT DISTINCT reason FROM transitions WHERE kind = 'rollout' AND from_state = 'verified'")
    )
    assert [row.reason.startswith("rescored: ") and row.reason.endswith(": hacked") for row in reasons] == [
        True
    ]
    await no_violations(pool.engine, run.name, pool.policies)


async def test_without_tests_every_free_group_is_judged_again(pool: Pool, home: Path, tmp_path: Path) -> None:
    await trained(pool, edition(tmp_path / "was", HACKED), "abcd")
    done = json.loads((await command(home, "--to-batch", "0", "--rescore", "--json")).stdout)
    assert done["batches"] == [1]
    assert done["rescored"] == {"groups": 2, "rollouts": 8, "left_alone": {"trained": 2}}
    assert await states(pool) == "trained trained dispatched dispatched"


async def test_a_refused_rescore_undoes_no_batch(pool: Pool, home: Path, tmp_path: Path) -> None:
    await trained(pool, edition(tmp_path / "was", HACKED), "abcd")
    other = edition(tmp_path / "now", CORRECTED)
    (tmp_path / "now/instruction.md").write_text("write ho")
    refused = await command(home, "--to-batch", "-1", "--tests", str(tmp_path / "now"))
    assert isinstance(refused.exception, ConfigurationError) and other.name in str(refused.exception)
    assert await states(pool) == "trained trained trained trained"
