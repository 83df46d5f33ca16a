"""A batch over which the trainer fails with any error: tried again, counted across restarts, quarantined, named; the next one is trained."""

import asyncio
import secrets
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from sqlalchemy import select, text
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError, StatementError
from structlog.testing import capture_logs

from orchestrator.cli.status import read_run
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.quarantine import MAX_FAILURES, failures
from orchestrator.pool.runs import close_intake
from orchestrator.pool.tables import batches, groups, policy_versions, train_steps
from orchestrator.queries.batches import failed_batches
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import Timeouts, use
from tests.builders import Author, make_run, ready_groups
from tests.integration.trainer.rig import Pool, model, pool, start_trainer
from tests.integration.trainer.test_ranks import RUN, live
from tests.processes import closing
from tests.services import Databases
from tests.waiting import eventually
from trainer import batch as batch_module
from trainer import checkpoint
from trainer.failures import NoMemory, RankFailed, described, of_platform
from trainer.learner import Learners
from trainer.loop import train_batches
from trainer.phases import NoBatch, Trainer
from trainer.ranks.rank_env import RankLost

__all__ = ["model", "pool"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("trainer")]

# As an earlier release stored it: ingest refuses it today.
NO_TEMPERATURE = """WITH odd AS (INSERT INTO sampling (run_id, sha, params)
  VALUES (:run, '\\x00', '{"temperature": null}') RETURNING sampling_id)
UPDATE steps SET sampling_id = odd.sampling_id FROM odd, rollouts r WHERE r.rollout_id = steps.rollout_id AND r.group_id = :group AND r.member = 1"""


async def odd_group(pool: Pool, run_id: int, group: int) -> None:
    """Give a member of the group steps that cannot be read."""
    async with pool.engine.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))  # rows are immutable
        await connection.execute(text(NO_TEMPERATURE), {"run": run_id, "group": group})


async def test_a_batch_that_raises_any_error_is_quarantined_with_its_rollout_and_the_process_trains_the_next(
    pool: Pool,
) -> None:
    run = await pool.run()
    bad = await ready_groups(pool.engine, run, ["a", "b"], Author())
    await ready_groups(pool.engine, run, ["c", "d"], Author())
    await odd_group(pool, run.run_id, bad[1])
    async with pool.engine.begin() as connection:
        assert await close_intake(connection, run.run_id)
    async with closing(await start_trainer(pool)) as process:
        assert process.stderr is not None
        log = b"".join([part async for part in process.stderr])
        with anyio.fail_after(60):
            assert await process.wait() == 0, log.decode()
    assert log.count(b'"batch.failed"') == MAX_FAILURES and b"Traceback" in log
    given_up, trained = await pool.rows(select(batches).order_by(batches.c.batch_id))
    assert (given_up.state, trained.state) == ("voided", "committed")
    [name] = await pool.rows(
        text("SELECT rollout_id FROM rollouts WHERE group_id = :group AND member = 1").bindparams(
            group=bad[1]
        )
    )
    error = "TypeError: float() argument must be a string or a real number, not 'NoneType'"
    assert given_up.void_detail == (
        f"training it failed 2 times, the last time with {error}; "
        f"unreadable: rollout {name.rollout_id} (attempt 1) of group {bad[1]}: {error}"
    )
    states = select(groups.c.state, groups.c.reason).order_by(groups.c.group_id)
    assert [tuple(row) for row in await pool.rows(states)] == [("filtered", "quarantined")] * 2 + [
        ("trained", None)
    ] * 2
    assert len(await pool.rows(select(train_steps))) == 2 and (await pool.newest(run)).version == 1
    config = Config.from_json(run.config).model_copy(
        update={"services": Config().services.model_copy(update={"database_url": pool.url})}
    )
    [named] = (await read_run(config)).failed_batches
    assert named == f"batch 0 (groups {bad[0]}, {bad[1]}) was quarantined: {given_up.void_detail}"
    async with pool.engine.connect() as connection:  # as `doctor --cluster` reads it: training goes on
        assert await failed_batches(connection, run.run_id, unresolved=True) == []


async def test_failures_of_a_batch_are_counted_across_restarts_and_its_success_ends_them(pool: Pool) -> None:
    run = await pool.run()
    [first, second] = await ready_groups(pool.engine, run, ["a", "b"], Author())

    async def claimed() -> tuple[Trainer, int]:
        trainer = await pool.trainer(run)
        batch = await trainer.claim()
        assert not isinstance(batch, NoBatch)
        await trainer.failed(batch, RuntimeError("of the trainer"))
        return trainer, batch.batch_id

    trainer, batch_id = await claimed()
    async with pool.engine.connect() as connection:
        assert await failures(connection, batch_id) == 1
    config = Config.from_json(run.config).model_copy(
        update={"services": Config().services.model_copy(update={"database_url": pool.url})}
    )
    assert (await read_run(config)).failed_batches == [
        f"batch 0 (groups {first}, {second}) failed once and is tried again: RuntimeError: of the trainer"
    ]
    await train_batches(trainer, 2)
    assert (await pool.newest(run)).version == 1 and (await read_run(config)).failed_batches == []
    await ready_groups(pool.engine, run, ["c", "d", "e", "f"], Author(version=1))
    for _ in range(MAX_FAILURES):  # each in another process
        trainer, batch_id = await claimed()
    [row] = await pool.rows(select(batches).where(batches.c.batch_id == batch_id))
    assert row.state == "voided"
    assert row.void_detail == "training it failed 2 times, the last time with RuntimeError: of the trainer"
    async with pool.engine.connect() as connection:
        [unresolved] = await failed_batches(connection, run.run_id, unresolved=True)
    assert unresolved.endswith(f"was quarantined: {row.void_detail}")
    await train_batches(trainer, 2)
    assert [row.state for row in await pool.rows(select(groups.c.state).order_by(groups.c.group_id))] == [
        "trained", "trained", "filtered", "filtered", "trained", "trained"
    ]  # fmt: skip


async def test_a_batch_whose_samples_take_longer_than_a_silent_transaction_may_last_is_trained(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    made = batch_module.make_parts

    def slow(*args: Any) -> list[batch_module.BatchPart]:
        time.sleep(1.0)  # noqa: TID251  # a large batch
        return made(*args)

    monkeypatch.setattr(batch_module, "make_parts", slow)
    with use(Timeouts(pool_idle_s=0.2)), anyio.fail_after(120):
        async with open_engine(pool.url, Role.TRAINER, size=2) as impatient:
            await train_batches(await replace(pool, trainers=impatient).trainer(run), 1)
    assert (await pool.newest(run)).version == 1


async def test_a_checkpoint_that_the_disk_damages_is_written_again_and_its_batch_is_committed(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    trainer = await pool.trainer(run)
    synced, damaged = checkpoint._fsync, list[Path]()

    def damaging(path: Path, *, at: str) -> None:
        synced(path, at=at)
        if at == "checkpoint.named" and not damaged:
            [file] = path.glob("version-000001/model.safetensors")
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
            damaged.append(file)

    monkeypatch.setattr(checkpoint, "_fsync", damaging)
    with use(Timeouts(disk_retry_s=0.05)), capture_logs() as logs:
        await train_batches(trainer, 1)
    assert (await pool.newest(run)).version == 1
    checkpoint.open_checkpoint(damaged[0].parent)
    events = [line["event"] for line in logs]
    assert events.count("checkpoint.failed") == 1 and "batch.failed" not in events


async def test_the_tensors_of_a_failed_step_are_gone_before_the_checkpoint_is_loaded_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    trainer = await pool.trainer(run)
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    async def train(*_: object) -> list[dict[str, Any]]:
        activations = torch.zeros(8)
        held.append(weakref.ref(activations))
        raise RuntimeError("of the trainer")

    async def resume() -> None:
        alive.append(held[-1]() is not None)

    monkeypatch.setattr(trainer, "train", train)
    monkeypatch.setattr(trainer, "resume", resume)
    async with pool.engine.begin() as connection:
        assert await close_intake(connection, run.run_id)
    await train_batches(trainer)
    assert alive == [False] * MAX_FAILURES


compile_failure = RuntimeError("backend='inductor' raised")
compile_failure.__cause__ = OSError(28, "no space left on device")
PLATFORM = [
    OSError(28, "no space left on device"),
    ConfigurationError("raise trainer.pack_pairs"),
    RankLost("rank 1 is gone"),
    OperationalError("SELECT", {}, OSError(104, "reset")),
    ProgrammingError("SELECT", {}, type("UndefinedTable", (Exception,), {"sqlstate": "42P01"})()),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    compile_failure,
]
CONTENT = [
    TypeError("float(None)"),
    RuntimeError("index out of range"),
    RuntimeError("CUDA error: device-side assert triggered"),
    MemoryError(),
    RecursionError(),
    ValueError("no number"),
    DataError("INSERT", {}, type("InvalidText", (Exception,), {"sqlstate": "22P02"})()),
    StatementError("a value", "INSERT", {}, TypeError("bytes")),
]


def test_only_errors_that_are_certainly_of_the_platform_leave_a_batch_uncounted() -> None:
    assert all(map(of_platform, PLATFORM)) and not any(map(of_platform, CONTENT))
    assert described(MemoryError()) == "MemoryError"
    assert described(RuntimeError("one\ntwo")) == "RuntimeError: one"


async def test_a_failure_of_the_platform_ends_the_trainer_and_keeps_the_batch(pool: Pool) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    trainer = await pool.trainer(run)
    batch = await trainer.claim()
    assert not isinstance(batch, NoBatch)
    for error in PLATFORM:
        expected = NoMemory if isinstance(error, torch.OutOfMemoryError) else type(error)
        with pytest.raises(expected):
            await trainer.failed(batch, error)
    async with pool.engine.connect() as connection:
        assert await failures(connection, batch.batch_id) == 0
    with pytest.raises(RankLost, match="batch 0 failed: rank 1: KeyError: 7, so the trainer ends"):
        await trainer.failed(batch, RankFailed("rank 1: KeyError: 7"))
    async with pool.engine.connect() as connection:
        assert await failures(connection, batch.batch_id) == 1
    await train_batches(await pool.trainer(run), 2)
    assert (await pool.newest(run)).version == 1


@pytest.mark.parametrize("phase", ["train", "save"])
async def test_a_failure_that_another_rank_reported_counts_when_its_end_cancels_the_phase(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    run = await pool.run()
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    trainer = await pool.trainer(run)
    batch = await trainer.claim()
    assert not isinstance(batch, NoBatch)
    parts = await trainer.read(batch)
    standing, ended = threading.Event(), threading.Event()

    def stands(*given: Any) -> None:  # in a collective without the other rank
        standing.set()
        ended.wait(60)

    monkeypatch.setattr(trainer.learner, phase, stands)
    monkeypatch.setattr(Learners, "reported", lambda self: "rank 1: KeyError: 7")
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(*((trainer.train, batch, parts) if phase == "train" else (trainer.save, batch)))
            await eventually(standing.is_set)
            tasks.cancel_scope.cancel()
    finally:
        ended.set()
    async with pool.engine.connect() as connection:
        assert await failures(connection, batch.batch_id) == 1


@pytest.mark.parametrize("broken", [0, 1])
def test_a_rank_that_fails_over_a_batch_ends_all_and_after_two_lives_the_next_batch_is_trained(
    databases: Databases,
    template_database: str,
    services_runner: asyncio.Runner,
    model: Path,
    tmp_path: Path,
    broken: int,
) -> None:
    name = f"failing_{secrets.token_hex(6)}"
    url = databases.create(name, template=template_database)
    group = services_runner.run(two_batches(url, model))
    life = {"ranks": 2, "database": url, "policies": str(tmp_path), "breaks": [broken, str(group)]}
    *lives, last = live([life] * 3)
    error = f"{'rank 1: ' if broken else ''}KeyError: 'of group {group}'"
    for each in lives:
        assert each["ended"] == 1, each
        assert each["events"].count("batch.failed") == 1, each
        assert any(error in line and "so the trainer ends" in line for line in each["log"]), each["log"]
    assert (last["ended"], last["events"].count("batch.committed")) == (0, 1), last
    services_runner.run(left(url, error))
    databases.drop(name)


async def two_batches(url: str, model: Path) -> int:
    """Two batches of one group to train; returns the first group."""
    config = Config.model_validate(
        {
            "run": {"name": RUN},
            "policy": {"model": str(model)},
            "queue": {"batch_groups": 1, "capacity": 8, "window_fraction": 0.3},
        }
    )
    async with open_engine(url, name="test") as engine:
        run = await make_run(engine, config)
        [first] = await ready_groups(engine, run, ["bad"], Author())
        await ready_groups(engine, run, ["good"], Author())
        async with engine.begin() as connection:
            assert await close_intake(connection, run.run_id)
    return first


async def left(url: str, error: str) -> None:
    """One batch is quarantined with the error of its rank, the other is trained once."""
    async with open_engine(url, name="test") as engine, engine.connect() as connection:
        found = (await connection.execute(select(batches).order_by(batches.c.batch_id))).all()
        versions = (await connection.execute(select(policy_versions.c.version))).scalars().all()
    assert [row.state for row in found] == ["voided", "committed"]
    assert found[0].void_detail == f"training it failed 2 times, the last time with {error}"
    assert sorted(versions) == [0, 1]
