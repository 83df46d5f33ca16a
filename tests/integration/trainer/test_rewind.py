"""A rewind with a real trainer: it continues from the batch's weights under new numbers; damaged and full disks cause nothing worse than a wait."""

import hashlib
import json
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from sqlalchemy import select
from typer.testing import CliRunner, Result

from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import write_template
from orchestrator.pool.batches import LiveBatch
from orchestrator.pool.rewind import Rewound, rewind
from orchestrator.pool.runs import StoredRun
from orchestrator.pool.tables import batches, groups, policy_versions, train_steps
from tests.builders import Author, ready_groups
from tests.integration.audit.audited import no_violations
from tests.integration.trainer.rig import SUBJECT, Pool, model, pool, start_trainer, until
from tests.processes import closing
from trainer.checkpoint import discard, list_checkpoints
from trainer.loop import train_batches
from trainer.phases import NoBatch, Trainer

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("trainer")]

KEEP = {"keep_checkpoints": 9, "parts": 1}


async def prepared(pool: Pool, names: str, **sections: dict[str, Any]) -> StoredRun:
    run = await pool.run(**{"trainer": KEEP} | sections)
    await ready_groups(pool.engine, run, list(names), Author())
    return run


async def undo(pool: Pool, run: StoredRun, to_batch: int) -> Rewound:
    async with pool.engine.begin() as connection:
        return await rewind(
            connection, run.run_id, to_batch, SUBJECT, "test", lambda version: Path(version.path).is_dir()
        )


def trained_state(directory: Path) -> dict[str, str]:
    """sha256 of the trained files of a checkpoint: weights and optimizer."""
    files = ("model.safetensors", "trainer/optimizer.safetensors")
    return {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in files}


async def checkpoint(pool: Pool, version: int) -> Path:
    [row] = await pool.rows(select(policy_versions.c.path).where(policy_versions.c.version == version))
    return Path(row.path)


async def audited(pool: Pool, run: StoredRun) -> None:
    report = await no_violations(pool.engine, run.name, pool.policies)
    assert any(check.name.startswith("weights") and check.examined > 1 for check in report.checks)


async def test_the_same_groups_train_again_to_the_same_weights_bit_for_bit(pool: Pool) -> None:
    run = await prepared(pool, "abcdefgh")
    trainer = await pool.trainer(run)
    await train_batches(trainer, 4)
    first = [trained_state(await checkpoint(pool, version)) for version in range(5)]
    digests = await pool.rows(select(batches.c.digest).order_by(batches.c.batch_id))
    assert (await undo(pool, run, 1)).version == 5
    assert trained_state(await checkpoint(pool, 5)) == first[2]
    await train_batches(trainer, 2)  # the trainer was at batch 3: it finds out by itself
    assert [trained_state(await checkpoint(pool, version)) for version in (6, 7)] == first[3:]
    assert first[3] != first[2] != first[1]
    again = select(batches.c.digest).where(batches.c.state == "committed").order_by(batches.c.batch_no)
    assert await pool.rows(again) == digests
    newest = await pool.newest(run)
    assert (newest.version, newest.parent, newest.batch_no) == (7, 6, 3)
    await audited(pool, run)
    metrics = await pool.rows(select(train_steps.c.metrics).order_by(train_steps.c.train_step))
    assert [list(row.metrics["staleness"]) for row in metrics] == [
        [n] for n in ("0", "1", "2", "3", "5", "6")
    ]


async def test_other_groups_may_come_in_between_and_nothing_is_trained_twice(pool: Pool) -> None:
    run = await prepared(pool, "abcd")
    await train_batches(await pool.trainer(run), 2)
    await undo(pool, run, 0)
    await ready_groups(pool.engine, run, ["e", "f"], Author(seed=1, version=3))
    await train_batches(await pool.trainer(run), 2)  # a new process
    states = await pool.rows(select(groups.c.submission, groups.c.state).order_by(groups.c.group_id))
    assert [tuple(row) for row in states] == [(name, "trained") for name in "abcdef"]
    versions = await pool.rows(select(policy_versions).order_by(policy_versions.c.version))
    assert [(v.version, v.parent, v.batch_no, v.superseded_by) for v in versions] == [
        (0, None, None, None),
        (1, 0, 0, None),
        (2, 1, 1, 3),
        (3, 1, 0, None),
        (4, 3, 1, None),
        (5, 4, 2, None),
    ]
    await audited(pool, run)


async def test_a_trainer_in_the_middle_of_an_undone_batch_commits_nothing_of_it(pool: Pool) -> None:
    run = await prepared(pool, "abcd")
    trainer = await pool.trainer(run)
    await train_batches(trainer, 1)
    batch = await trainer.claim()
    assert isinstance(batch, LiveBatch)
    reports = await trainer.train(batch, await trainer.read(batch))
    await undo(pool, run, -1)  # it publishes version 2, the number that this trainer is about to use
    new = await trainer.save(batch)
    assert new.version == 3
    assert not await trainer.commit(batch, new, reports)
    assert await trainer.claim() is NoBatch.REWOUND
    await train_batches(trainer, 2)
    assert (await pool.newest(run)).batch_no == 1
    await audited(pool, run)


async def test_weights_that_were_published_again_are_not_pruned(pool: Pool) -> None:
    run = await prepared(pool, "abcdefgh", trainer={"keep_checkpoints": 2, "parts": 1})
    trainer = await pool.trainer(run)
    await train_batches(trainer, 3)
    kept: Callable[[], list[int]] = lambda: sorted(
        int(path.name[-6:]) for path in list_checkpoints(trainer.root)
    )
    assert kept() == [0, 2, 3]
    with pytest.raises(
        ConfigurationError, match=r"batch 0 \(version 1\) is pruned; choose from -1 .*, 1, 2;"
    ):
        await undo(pool, run, 0)
    await undo(pool, run, 1)  # version 4 uses version 2's directory
    await train_batches(trainer, 1)
    assert kept() == [0, 2, 5]
    await train_batches(await pool.trainer(run), 1)
    assert kept() == [0, 5, 6] and not list(trainer.root.glob(".discarded-*"))
    await audited(pool, run)


async def test_what_a_stopped_trainer_discarded_while_a_rewind_chose_it_comes_back(pool: Pool) -> None:
    run = await prepared(pool, "abcdef", trainer={"keep_checkpoints": 2, "parts": 1})
    trainer = await pool.trainer(run)
    await train_batches(trainer, 2)
    await undo(pool, run, 0)
    for version in (0, 1):  # decided before the rewind, done after it
        discard(await checkpoint(pool, version))
    await (again := await pool.trainer(run)).prune()
    assert sorted(path.name for path in again.root.glob("*version*")) == ["version-000000", "version-000001"]
    await train_batches(again, 2)
    assert (await pool.newest(run)).batch_no == 2
    await audited(pool, run)


async def test_a_failed_rename_does_not_make_the_trainer_wait_for_postgres(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await prepared(pool, "abcdef", trainer={"keep_checkpoints": 2, "parts": 1})
    trainer = await pool.trainer(run)
    await train_batches(trainer, 2)
    discard(await checkpoint(pool, 0))
    refused: list[Path] = []

    def read_only(path: Path, target: Path) -> Path:
        refused.append(path)
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", read_only)
        with anyio.fail_after(60):
            await trainer.prune()
    assert [path.name for path in refused] == [".discarded-version-000000"]
    await trainer.prune()
    assert (await checkpoint(pool, 0)).is_dir()
    await audited(pool, run)


async def test_a_damaged_checkpoint_stops_the_trainer_with_the_file_and_the_way_out(pool: Pool) -> None:
    home = write_template(pool.policies.parent / "first", "test", "").parent
    pool = replace(pool, policies=home / ".penstock/policies")
    run = await prepared(pool, "abcdef")
    trainer = await pool.trainer(run)
    await train_batches(trainer, 2)
    weights = await checkpoint(pool, 2) / "model.safetensors"
    whole = weights.read_bytes()
    for damage in (whole[:-1], whole[:-1] + b"\0"):
        weights.write_bytes(damage)
        with pytest.raises(
            ConfigurationError, match=rf"`penstock rewind -c {home} --to-batch 0`$"
        ) as stopped:
            await pool.trainer(run)
        assert str(stopped.value).startswith(f"corrupt checkpoint: {weights}")
    shutil.rmtree(weights.parent)
    shutil.copytree(await checkpoint(pool, 1), weights.parent)
    with pytest.raises(ConfigurationError, match="is not the checkpoint that was published"):
        await pool.trainer(run)  # whole, but of another version
    await undo(pool, run, 0)
    await train_batches(await pool.trainer(run), 2)
    assert (await pool.newest(run)).batch_no == 2


def call(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["rewind", "-c", str(home), *arguments])


async def test_the_command_undoes_and_says_so_and_refuses_what_is_damaged(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", pool.url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")  # it publishes nothing there itself
    home = write_template(tmp_path / "home", "test", "").parent
    run = await prepared(pool, "abcdef")
    trainer = await pool.trainer(run)
    await train_batches(trainer, 3)

    async def command(*arguments: str) -> Result:
        return await anyio.to_thread.run_sync(lambda: call(home, *arguments))

    optimizer = await checkpoint(pool, 1) / "trainer" / "optimizer.safetensors"
    whole = optimizer.read_bytes()
    optimizer.write_bytes(whole + b" ")
    refused = await command("--to-batch", "0")
    assert isinstance(refused.exception, ConfigurationError) and str(optimizer) in str(refused.exception)
    optimizer.write_bytes(whole)
    done = await command("--to-batch", "0", "--reason", "it collapsed")
    assert done.stdout == (
        "undone: batches 1, 2; 4 groups are ready again; version 4 has the weights of batch 0 and supersedes 2, 3\n"
    )
    last = await command("--to-batch", "-1", "--json")
    assert json.loads(last.stdout) == {
        "to_batch": -1,
        "batches": [0],
        "groups": 2,
        "superseded": [1, 4],
        "version": 5,
    }
    await train_batches(trainer, 3)
    await audited(pool, run)


async def test_a_full_disk_is_waited_for_and_never_leaves_half_a_checkpoint(pool: Pool) -> None:
    run = await prepared(pool, "ab")
    whole = await checkpoint_size(pool, run)
    async with closing(await start_trainer(pool)) as process:
        # A file may not grow beyond this: a file that is too large gives the same kind of error as a full disk.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (whole // 2, resource.RLIM_INFINITY))
        seen = await until(process, "checkpoint.failed")
        assert "batch.committed" not in seen
        root = pool.policies / run.name
        assert [path.name for path in list_checkpoints(root)] == ["version-000000"]
        assert (await pool.newest(run)).version == 0
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await until(process, "batch.committed")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    await pool.trainer(run)
    assert (await pool.newest(run)).version == 1
    await audited(pool, run)


async def checkpoint_size(pool: Pool, run: StoredRun) -> int:
    """Bytes of the weights; version 0 is there afterwards."""
    trainer: Trainer = await pool.trainer(run)
    return (list_checkpoints(trainer.root)[0] / "model.safetensors").stat().st_size
