"""The use of time in a run: the account of a run with real training."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ops.lab.benchmarks.loop import (
    Loop,
    bars_of,
    newest,
    read,
    synced,
)
from ops.lab.benchmarks.utilisation import GIVEN_UP
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.config import FILE, Config
from tests.builders import Author, ready_groups
from tests.integration.trainer.rig import Pool, model, pool
from trainer.loop import train_batches

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]


async def account(pool: Pool, run_id: int, config: Config, log: Path) -> Loop:
    async with pool.engine.connect() as connection:
        return await read(connection, run_id, config, synced(log))


async def test_every_second_of_every_slot_has_one_name(pool: Pool, tmp_path: Path) -> None:
    run = await pool.run(rollout={"slots": 4, "verify_slots": 2})
    config = Config.from_json(run.config)
    log = tmp_path / "gateway.log"
    with pytest.raises(ConfigurationError, match="no batch of this run is committed"):
        await account(pool, run.run_id, config, log)
    await ready_groups(pool.engine, run, ["a", "b", "c", "d"], Author())
    await train_batches(await pool.trainer(run), 3)
    spent = {"other": 0.25, "session": 0.5, "sandbox": 1.0, "agent": 6.0, "changes": 0.25, "seal": 1.0}
    changes = [
        # A rollout every 3 s: it waits 1 s, has a slot for 9 s of the 10 that its result takes, and waits 2 s for verification.
        """UPDATE transitions t SET at = to_timestamp(1000 + 3 * n) + interval '1 s' * CASE to_state WHEN 'waiting' THEN -1 WHEN 'queued' THEN 0
             WHEN 'running' THEN 1 WHEN 'reported' THEN 11 WHEN 'finished' THEN 11 WHEN 'verifying' THEN 13 ELSE 16 END
           FROM (SELECT rollout_id, row_number() OVER (ORDER BY rollout_id) - 1 AS n FROM rollouts) r
           WHERE kind = 'rollout' AND entity_id = rollout_id""",
        "UPDATE groups SET dispatched = to_timestamp(1000)",
        f"UPDATE attempts SET spent = '{json.dumps(spent)}'",
        "UPDATE attempts SET spent = NULL WHERE rollout_id = (SELECT max(rollout_id) FROM rollouts)",
        "UPDATE steps SET t_gen = 0.5, t_queue = 0.25, t_gap = 0.25, at = to_timestamp(1000 + rollout_id % 10)",
        "UPDATE verdicts SET verify_s = 3, at = to_timestamp(1020)",
        "UPDATE batches SET opened = to_timestamp(1050 + 20 * batch_no), closed = to_timestamp(1060 + 20 * batch_no), "
        "committed = to_timestamp(1070 + 20 * batch_no)",
        """UPDATE train_steps SET metrics = jsonb_set(metrics, '{seconds}', '{"claim": 1, "read": 1, "forward": 2, "backward": 1, "prune": 1}')""",
        """UPDATE transitions SET at = to_timestamp(1000) + interval '1 s' * CASE to_state WHEN 'accepted' THEN -4 WHEN 'dispatched' THEN 0
             WHEN 'ready' THEN 70 WHEN 'taken' THEN 75 ELSE 90 END WHERE kind = 'group'""",
    ]
    async with pool.engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))  # rows are immutable
        for change in changes:
            await connection.execute(text(change))
    log.write_text("".join(json.dumps({"event": "sync.done", "held_s": held}) + "\n" for held in (0.25, 0.5)))

    found = await account(pool, run.run_id, config, log)
    assert (found.attempts, found.batches, found.syncs) == (16, 2, [0.25, 0.5])
    assert found.window.seconds == 90
    for place in found.places:
        assert place.busy + sum(place.rests.values()) == pytest.approx(place.whole), place.name
    slots = found.place("rollout slots")
    assert (slots.slots, slots.whole) == (4, 4 * 90)
    assert slots.busy == pytest.approx(15 * 9 + 10), (
        "15 attempts that reported their times, and one that did not"
    )
    assert found.twice == 0
    assert slots.parts[GIVEN_UP] == 10
    assert slots.parts["opening its session"] == pytest.approx(15 * 0.5)
    assert slots.parts["opening and closing its sandbox"] == 15
    measured = sum(
        slots.parts[name]
        for name in (
            "generation",
            "waiting at the gateway",
            "agent between its calls",
            "starting and ending the agent",
        )
    )
    assert measured == pytest.approx(15 * 6)
    assert slots.parts["generation"] == pytest.approx(2 * slots.parts["waiting at the gateway"])
    assert slots.rests["claim: a rollout is queued, a slot is free"] == pytest.approx(16)
    assert found.place("verification slots").parts == {"verification": 16 * 3}
    servers = found.place("rollout servers").parts["a completion is under way"]
    assert servers == pytest.approx(10 * 0.5 - 0.5), "from 1,000 on"
    assert found.at_once == pytest.approx((found.steps * 0.5 - 0.5 * await at_the_start(pool)) / 90)
    trainer = found.place("trainer")
    assert trainer.parts == {
        "claim": 4,
        "read": 4,
        "forward": 8,
        "backward": 4,
        "prune": 4,
        "batches that were undone": 0,
        "between its phases": 4,
    }
    assert trainer.rests == {"waiting for ready groups": 90 - 28}
    waits: dict[str, tuple[int, Any]] = {wait.name: (wait.count, wait.mean) for wait in found.waits}
    assert waits["rollout: for a slot"] == (16, pytest.approx(1))
    assert waits["result: to the data pool"] == (16, pytest.approx(15 / 16))
    assert waits["rollout: for a verification slot"] == (16, pytest.approx(2))
    assert waits["batch: to be full"] == (2, pytest.approx(10))
    assert waits["task: for its place in the queue"] == (4, pytest.approx(4))
    assert waits["group: for its batch"] == (4, pytest.approx(5))
    assert found.bottleneck.startswith("rollout slots: ")
    assert all(bar.holds for bar in bars_of(found) if "trainer" not in bar.name)


async def at_the_start(pool: Pool) -> int:
    """Steps whose generation lies before the first dispatch."""
    (row,) = await pool.rows(text("SELECT count(*) AS n FROM steps WHERE rollout_id % 10 = 0"))
    return int(row.n)


async def test_a_trained_batch_says_where_the_trainers_seconds_went(pool: Pool, tmp_path: Path) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b", "c", "d"], Author())
    await train_batches(await pool.trainer(run), 4)
    found = await account(pool, run.run_id, Config.from_json(run.config), tmp_path / "none.log")
    parts = found.place("trainer").parts
    assert list(parts) == [
        "claim",
        "read",
        "tree",
        "forward",
        "loss",
        "backward",
        "optimizer",
        "save",
        "commit",
        "prune",
        "batches that were undone",
        "between its phases",
    ]
    measured = {
        name: took
        for name, took in parts.items()
        if name not in ("batches that were undone", "between its phases")
    }
    assert all(took > 0 for took in measured.values()), measured
    assert parts["between its phases"] >= 0, "a difference of clocks, at least 0"
    assert parts["between its phases"] < 0.5 * found.place("trainer").busy


def test_the_last_run_is_the_one_whose_configuration_is_newest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no run"):
        newest(tmp_path)
    for name, at in (("second", 2.0), ("first", 1.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).touch()
        os.utime(tmp_path / name / FILE, (at, at))
    assert newest(tmp_path).name == "second"
