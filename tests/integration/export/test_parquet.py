"""Parquet, read back by pyarrow and by HF `datasets`."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from orchestrator.contracts.ids import ids_from_bytes, logprobs_from_bytes
from orchestrator.export import parquet
from orchestrator.export.parquet import Parquet
from orchestrator.export.rows import STEPS, TRAJECTORIES
from orchestrator.pool.steps import trajectories
from orchestrator.pool.tables import rewards, steps
from tests.integration.export.rig import ExportedRun, exported_run

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


async def test_a_row_per_step_has_the_tokens_of_the_data_pool(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    await exported_run.export(Parquet(full=True), tmp_path / "out")
    rows = pyarrow.parquet.read_table(tmp_path / "out/data/steps").to_pylist()
    stored = {(row.rollout_id, row.idx): row for row in await exported_run.rows(steps)}
    assert len(rows) == len(stored) == 72
    async with exported_run.reader.connect() as connection:
        folded = await trajectories(
            connection, exported_run.run.run_id, sorted({(row["rollout"], 1) for row in rows})
        )
    whole = {(step.rollout_id, step.idx): step.full for each in folded.values() for step in each}
    for row in rows:
        key = row["rollout"], row["step"]
        assert row["action_ids"] == ids_from_bytes(stored[key].action).tolist()
        assert row["delta_ids"] == ids_from_bytes(stored[key].delta).tolist()
        assert np.array_equal(np.float32(row["logprobs"]), logprobs_from_bytes(stored[key].logprobs))
        assert row["input_ids"] == whole[key].tolist()
        above = row["prompt_ids"] if row["parent"] is None else whole[row["rollout"], row["parent"]].tolist()
        assert row["input_ids"] == above[: row["kept"]] + row["delta_ids"] + row["action_ids"]
        assert row["loss_mask"] == [int(not row["marks"])] * len(row["action_ids"])
        assert row["versions"] == [0] * len(row["action_ids"])
    assert sum(bool(row["marks"]) for row in rows) == 4
    third = next(row for row in rows if row["step"] == 3)
    assert [message["role"] for message in json.loads(third["messages"])] == ["tool", "assistant"]
    assert len(json.loads(third["conversation"])) == 7


async def test_a_row_per_attempt_has_its_reward_and_what_trained_it(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    await exported_run.export(Parquet(), tmp_path / "out")
    rows = pyarrow.parquet.read_table(tmp_path / "out/data/trajectories").to_pylist()
    rated = {row.rollout_id: row for row in await exported_run.rows(rewards)}
    assert [row["rollout"] for row in rows] == sorted(rated)
    for row in rows:
        reward = rated[row["rollout"]]
        assert (row["reward"], row["performance"], row["advantage"]) == (
            reward.total,
            reward.performance,
            reward.advantage,
        )
        assert (
            row["reward"] == row["performance"] + row["beta"] * row["speed"] + row["alpha"] * row["process"]
        )
    assert [row["batch"] for row in rows] == [0] * 8 + [None] * 4
    assert {row["steps"] for row in rows} == {6}


async def test_row_groups_are_written_as_they_fill(
    exported_run: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 10)
    done = await exported_run.export(Parquet(part=7), tmp_path / "out")
    files = sorted((tmp_path / "out/data/steps").iterdir())
    assert done.parts == len(files) == 2
    found = [pyarrow.parquet.ParquetFile(file) for file in files]
    assert [[each.metadata.row_group(i).num_rows for i in range(each.num_row_groups)] for each in found] == [
        [10, 10, 10, 10, 2],
        [10, 10, 10],
    ]


async def test_datasets_loads_both_tables_with_the_features_of_the_card(
    exported_run: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    await exported_run.export(Parquet(part=5), tmp_path / "out")
    for name, columns, rows in (("steps", STEPS, 72), ("trajectories", TRAJECTORIES, 12)):
        found = datasets.load_dataset(
            (tmp_path / "out").as_posix(), name, split="train", cache_dir=(tmp_path / "cache").as_posix()
        )
        assert (len(found), found.column_names) == (rows, list(columns))
    assert "| `logprobs` |" in (tmp_path / "out/README.md").read_text()
