"""Where the time of a run goes: the account of a run that was trained for real."""

import json
import os
from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrator.benchmarks.loop import Loop, newest, read, synced
from orchestrator.config import FILE, Config
from orchestrator.contracts.errors import ConfigurationError
from tests.builders import Author, ready_groups
from tests.integration.trainer_rig import Pool, model, pool
from trainer.loop import train_batches

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def account(pool: Pool, run_id: int, config: Config, log: Path) -> Loop:
    async with pool.engine.connect() as connection:
        return await read(connection, run_id, config, synced(log))


async def test_every_second_of_the_trainer_has_a_name_and_the_slots_are_added_up(
    pool: Pool, tmp_path: Path
) -> None:
    run = await pool.run(rollout={"slots": 4, "verify_slots": 2})
    config = Config.from_json(run.config)
    log = tmp_path / "gateway.log"
    with pytest.raises(ConfigurationError, match="no batch of this run is committed"):
        await account(pool, run.run_id, config, log)
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    await train_batches(await pool.trainer(run), 2)
    async with pool.engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))  # rows are immutable
        await connection.execute(text("UPDATE steps SET t_gen = 2, t_queue = 0.5, t_gap = 1"))
        await connection.execute(text("UPDATE attempts SET ended = started + interval '10 s'"))
        await connection.execute(text("UPDATE verdicts SET verify_s = 3"))
    log.write_text("".join(json.dumps({"event": "sync.done", "held_s": held}) + "\n" for held in (0.25, 0.5)))

    found = await account(pool, run.run_id, config, log)
    assert (found.attempts, found.batches, found.syncs) == (8, 1, [0.25, 0.5])
    assert (found.held, found.verified) == (80, 24)
    assert (
        found.rollouts["generation"] == 2 * found.steps
        and found.rollouts["agent between its calls"] == found.steps
    )
    assert sum(found.rollouts.values()) == pytest.approx(max(80, 3.5 * found.steps))
    assert set(found.trainer) == {
        "read",
        "tree",
        "forward",
        "backward",
        "optimizer",
        "loss",
        "save",
        "between its phases",
    }
    assert all(seconds > 0 for seconds in found.trainer.values())
    assert sum(found.trainer.values()) == pytest.approx(found.busy)
    assert found.bottleneck.startswith(max(found.utilisation, key=found.utilisation.__getitem__))


def test_the_last_run_is_the_one_whose_configuration_is_newest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no run in"):
        newest(tmp_path)
    for name, at in (("second", 2.0), ("first", 1.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).touch()
        os.utime(tmp_path / name / FILE, (at, at))
    assert newest(tmp_path).name == "second"
