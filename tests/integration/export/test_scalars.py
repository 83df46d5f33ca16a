"""Curves, read back: by TensorBoard's own accumulator, and from the records of W&B's offline file."""

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from orchestrator.export.scalars import Drawn, draw
from orchestrator.export.tensorboard import TensorBoard
from orchestrator.export.wandb import Wandb
from orchestrator.pool.tables import batches
from tests.integration.export.rig import RUN, ExportedRun, exported_run
from tests.integration.queries.evaluations_rig import evaluated

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


async def drawn(exported_run: ExportedRun, drawer: Any, out: Path) -> Drawn:
    return await draw(exported_run.reader, RUN, drawer, out)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's readers
async def test_tensorboard_reads_train_steps_and_evaluations(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    await evaluated(
        exported_run.owner, exported_run.run, "held", 1, {"coding": (1.0, 0.0), "general": (1.0, 1.0)}
    )
    await evaluated(exported_run.owner, exported_run.run, "partial", 1, {"coding": (1.0, None, None)}, size=3)
    done = await drawn(exported_run, TensorBoard(), tmp_path / "out")
    read = EventAccumulator((tmp_path / "out").as_posix())
    read.Reload()
    tags = read.Tags()["scalars"]
    assert (done.rows, done.curves) == (3, len(tags))
    (loss,) = read.Scalars("train/loss")
    assert (loss.step, loss.value) == (1, 0.5)
    assert read.Scalars("train/domains/coding/reward")[0].value == 0.25
    assert "train/skip_reason" not in tags
    (success,) = read.Scalars("eval/held/all/success")
    assert (success.step, success.value) == (1, 0.75)
    assert (
        read.Scalars("eval/held/coding/success_low")[0].value
        < 0.5
        < read.Scalars("eval/held/coding/success_high")[0].value
    )
    partial = {
        name: read.Scalars(f"eval/partial/{name}")[0].value
        for name in ("all/rollouts", "all/rollouts_wanted")
    }
    assert partial == {"all/rollouts": 1, "all/rollouts_wanted": 3}
    assert read.Scalars("eval/partial/without_verdict/verifier_failure")[0].value == 2
    again = await drawn(exported_run, TensorBoard(), tmp_path / "again")
    assert not again.already and (await drawn(exported_run, TensorBoard(), tmp_path / "again")).already
    (one,), (two,) = (list((tmp_path / name).glob("events.*")) for name in ("out", "again"))
    assert one.read_bytes() == two.read_bytes()


async def test_train_steps_that_were_undone_are_not_drawn(exported_run: ExportedRun, tmp_path: Path) -> None:
    async with exported_run.owner.begin() as connection:
        await connection.execute(update(batches).values(state="voided"))
    assert (await drawn(exported_run, TensorBoard(), tmp_path / "out")).rows == 0


async def test_wandb_writes_an_offline_run_that_holds_the_same_curves(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    await evaluated(exported_run.owner, exported_run.run, "held", 1, {"coding": (1.0, 0.0)})
    await drawn(exported_run, Wandb(), tmp_path / "out")
    (file,) = (tmp_path / "out").glob("wandb/offline-run-*/run-*.wandb")
    history = []
    config: dict[str, str] = {}
    from wandb.proto import wandb_internal_pb2

    for raw in records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(raw)
        if record.HasField("history"):
            history.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
        if record.HasField("run"):
            config |= {item.key: item.value_json for item in record.run.config.update}
    assert [row["train/loss"] for row in history if "train/loss" in row] == [0.5]
    assert [
        (row["policy_version"], row["eval/held/all/success"]) for row in history if "policy_version" in row
    ] == [(1, 0.5)]
    assert "queue" in config and "services" not in config
    assert not (tmp_path / "out/.writing").exists()


def records(file: bytes) -> Iterator[bytes]:
    """The log format of LevelDB with a head of 7 bytes: blocks of 32 KiB; a record is a checksum, a length, a type and its part."""
    assert file[:4] == b":W&B"
    position, parts = 7, b""
    while position + 7 <= len(file):
        if (left := -position % 32768) and left < 7:
            position += left
            continue
        checksum, length, kind = struct.unpack("<IHB", file[position : position + 7])
        part = file[position + 7 : position + 7 + length]
        assert checksum == zlib.crc32(bytes([kind]) + part)
        parts = part if kind in (1, 2) else parts + part
        if kind in (1, 4):
            yield parts
        position += 7 + length
