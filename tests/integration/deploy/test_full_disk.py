"""One small disk for the log, the journal and the checkpoints of a process, full to the last byte: it lives, and afterwards nothing is missing."""

import gc
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from ops.lab.chaos import disk
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.tables import processes
from tests.builders import Author, ready_groups
from tests.integration.audit.audited import no_violations
from tests.integration.deploy.small_disk import directory, small_disk
from tests.integration.runner.rig import a_task, open_rig, runs, says
from tests.integration.trainer.rig import Pool, model, pool, start_trainer
from tests.waiting import eventually
from trainer.checkpoint import list_checkpoints, open_checkpoint
from trainer.policy.init import make_policy

__all__ = ["directory", "model", "pool", "small_disk"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]

TTL_S = 9.0
PATIENCE_S = 100.0  # torch is loaded, on a busy machine
# The results of this many rollouts exceed the free part of the journal's last page, which a full disk still accepts.
ROLLOUTS = 4
TALKS = a_task(runs("echo done > out"), says("done " * 700))


@contextmanager
def a_log(place: Path) -> Iterator[int]:
    """The stdout and stderr of a supervised process."""
    log = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        yield log
    finally:
        os.close(log)


def fill(place: Path, log: int) -> None:
    """Not one more byte fits, not in the log's last page either."""
    disk.fill(place)
    with pytest.raises(OSError, match="No space left"):
        while True:
            os.write(log, b" ")


def events(log: Path) -> list[str]:
    """The events of the whole lines. The first event after the fill is not among them: it shares its line with the filling bytes."""
    lines = [line.strip() for line in log.read_text().splitlines()]
    return [json.loads(line)["event"] for line in lines if line.startswith("{") and line.endswith("}")]


async def until(wanted: Callable[[], Awaitable[bool]], alive: Callable[[], bool], log: Path) -> None:
    """Wait for the condition, while the process lives."""

    async def holds() -> bool:
        if await wanted():
            return True
        assert alive(), f"it died of a full disk: {log.read_text().strip()}"
        return False

    await eventually(holds, within_s=PATIENCE_S, every_s=0.05)


async def test_a_runner_whose_disk_is_full_lives_and_its_result_comes_through_once_there_is_room(
    database_url: str,
    nats_server: EmbeddedNats,
    directory: Path,
    small_disk: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    policy = make_policy(tmp_path_factory.mktemp("policy"), seed=0)
    journal, log = small_disk / "journal", small_disk / "runner.log"
    async with open_rig(database_url, nats_server.url, directory, policy, lease_ttl_s=TTL_S) as opened:
        worker = replace(opened.settings.worker, journal=journal)
        rig = replace(opened, settings=replace(opened.settings, worker=worker))
        with a_log(log) as descriptor:
            async with rig.runner_process(log=descriptor) as process:

                def alive() -> bool:
                    return process.poll() is None

                async def segment() -> bool:
                    return any(path.stat().st_size for path in journal.glob("*.journal"))

                await until(segment, alive, log)
                fill(small_disk, descriptor)
                rollouts = [await rig.submit(TALKS) for _ in range(ROLLOUTS)]

                async def ended() -> bool:
                    return len(await rig.rows("SELECT 1 FROM sessions WHERE state = 'sealed'")) == ROLLOUTS

                await until(ended, alive, log)
                (row,) = await rig.rows("SELECT now() AS now")

                async def renewed() -> bool:
                    query = "SELECT 1 FROM rollouts WHERE state = 'running' AND lease_until > :then"
                    return bool(await rig.rows(query, then=row.now + timedelta(seconds=2 * TTL_S)))

                await until(
                    renewed, alive, log
                )  # a result that the journal refused keeps its lease, far beyond its time to live
                disk.empty(small_disk)
                rollouts.append(await rig.submit(TALKS))  # and another, with room to log it
                for rollout in rollouts:
                    await rig.state(rollout, "finished")
                    (attempt,) = await rig.attempts(rollout)
                    assert attempt.failure_class == "completed"
                assert alive()
        logged = events(log)
        assert {"log.lines_lost", "rollout.finished"} <= set(logged), logged
        unpublished = ["steps are of published versions"]  # the policy plays a script
        await no_violations(rig.context.engine, rig.context.run, but=unpublished)


async def test_a_trainer_whose_disk_is_full_lives_and_its_version_comes_through_once_there_is_room(
    pool: Pool, small_disk: Path
) -> None:
    run = await pool.run(trainer={"keep_checkpoints": 9, "parts": 1}, timeouts={"disk_retry_s": 0.2})
    await ready_groups(pool.engine, run, ["a", "b"], Author())
    there, log = replace(pool, policies=small_disk / "policies"), small_disk / "trainer.log"
    root = (await there.trainer(run)).root  # version 0
    with a_log(log) as descriptor:
        fill(small_disk, descriptor)
        async with await start_trainer(there, log=descriptor) as process:

            def alive() -> bool:
                return process.returncode is None

            async def waits() -> bool:
                rows = await pool.rows(select(processes.c.loops))
                loops = [loop for row in rows for loop in row.loops]
                return any(
                    loop["item"] == "the checkpoint of batch 0" and loop["waits_for"] == "disk"
                    for loop in loops
                )

            await until(waits, alive, log)
            assert (await pool.newest(run)).version == 0
            assert [path.name for path in list_checkpoints(root)] == ["version-000000"]
            disk.empty(small_disk)

            async def committed() -> bool:
                return (await pool.newest(run)).version == 1

            await until(committed, alive, log)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(PATIENCE_S):
                assert await process.wait() == 0
    logged = events(log)
    assert {"log.lines_lost", "checkpoint.saved", "batch.committed"} <= set(logged)
    await there.trainer(run)  # its saved checkpoint is whole
    await no_violations(pool.engine, run.name, there.policies)


async def test_a_trainer_that_starts_on_a_full_disk_waits_with_its_first_version(
    pool: Pool, small_disk: Path
) -> None:
    run = await pool.run(timeouts={"disk_retry_s": 0.1})
    there = replace(pool, policies=small_disk / "policies")
    disk.fill(small_disk)
    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(there.trainer, run)
            await eventually(
                lambda: "checkpoint.failed" in {line["event"] for line in logs}, within_s=PATIENCE_S
            )
            disk.empty(small_disk)
    assert (await pool.newest(run)).version == 0
    open_checkpoint(Path((await pool.newest(run)).path))  # it is whole
    gc.collect()  # its weights are mapped from the disk, which is about to be removed


async def test_a_trainer_whose_directory_cannot_be_written_says_so_and_does_not_wait(
    pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "policies").write_text("a file")
    run = await pool.run()
    with pytest.raises(ConfigurationError, match=r"the first version in .* cannot be written: .*; fix that"):
        await replace(pool, policies=tmp_path / "policies").trainer(run)


def test_room_that_is_given_up_on_a_full_disk_is_taken_again(small_disk: Path) -> None:
    old, new = small_disk / "old", small_disk / "new"
    old.write_bytes(bytes(3 << 20))
    disk.fill(small_disk)
    old.unlink()
    disk.fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        new.write_bytes(b"x")
    disk.empty(small_disk)
    assert new.write_bytes(bytes(3 << 20)) == 3 << 20
