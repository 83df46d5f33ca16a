"""Retention: a prune drops an ended run's trajectories, keeps its results, and blocks no other work."""

import json
import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from typer.testing import CliRunner

from orchestrator.audit import audit
from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.ids import sha256
from orchestrator.contracts.states import Purpose
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import write_template
from orchestrator.pool import (
    batches,
    blobs,
    prune,
    run_end,
    tables,
)
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.runs import StoredRun, begin_end, finish_end, get_run, takes_steps
from orchestrator.pool.trainer_logprobs import TrainedStep
from orchestrator.runtime import failpoints
from orchestrator.scheduling.queue_policies import queue_policy
from tests import builders
from tests.integration.audit.audited import no_violations
from tests.integration.pool.rig import Tree, record, running, small
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]

POLICY = queue_policy("greedy", 6, 0.3)


async def ended_run(engine: AsyncEngine, name: str = "old") -> StoredRun:
    """A run that trained one batch and ended."""
    run = await builders.make_run(engine, small(name))
    await builders.ready_groups(engine, run, ["a", "b"], builders.Author(route=builders.one_expert))
    async with engine.begin() as connection:
        new = NewVersion(version=0, parent=None, path="/v0", manifest_sha="00")
        await batches.publish(connection, run.run_id, run.name, new, f"policy.{name}", None)
        batch = await batches.take(connection, run.run_id, POLICY, 2, 1)
        assert batch is not None
        new = NewVersion(version=1, parent=0, path="/v1", manifest_sha="11")
        found = (
            await connection.execute(select(tables.steps).where(tables.steps.c.run_id == run.run_id))
        ).all()
        trained = [
            TrainedStep(
                rollout_id=step.rollout_id, attempt=step.attempt, idx=step.idx, part=0, logprobs=step.logprobs
            )
            for step in found
        ]
        await batches.commit(
            connection,
            run.run_id,
            run.name,
            batch=batch,
            new=new,
            metrics=[{"loss": 0.5}],
            subject=f"policy.{name}",
            trained=trained,
        )
        assert await begin_end(connection, run.run_id, "done")
    await over(engine, run)
    async with engine.connect() as connection:
        return await get_run(connection, name)


async def over(engine: AsyncEngine, run: StoredRun) -> None:
    async with engine.begin() as connection:
        await run_end.filter_open(connection, run.run_id)
        assert await finish_end(connection, run.run_id)


async def pruned(engine: AsyncEngine, run: StoredRun) -> None:
    async with engine.begin() as connection:
        await prune.begin(connection, run)
    await prune.drop(engine, run.run_id)


async def kept(engine: AsyncEngine, run: StoredRun) -> dict[str, int]:
    """Rows of the run by table."""
    counted = {}
    async with engine.connect() as connection:
        for table in tables.metadata.sorted_tables:
            if "run_id" in table.c:
                query = select(func.count()).select_from(table).where(table.c.run_id == run.run_id)
                counted[table.name] = int(await connection.scalar(query) or 0)
    return counted


async def test_a_prune_drops_trajectories_and_keeps_what_became_of_them(engine: AsyncEngine) -> None:
    old, other = await ended_run(engine), await ended_run(engine, "other")
    before, others = await kept(engine, old), await kept(engine, other)
    await pruned(engine, old)
    after = await kept(engine, old)
    gone = {name for name in before if before[name] and not after[name]}
    assert gone == set(prune.PARTITIONED)
    assert {name: n for name, n in after.items() if name not in gone} == {
        name: n for name, n in before.items() if name not in gone
    }
    assert await kept(engine, other) == others
    async with engine.connect() as connection:
        left = "SELECT count(*) FROM pg_class WHERE relname IN ('steps_{0}', 'step_routes_{0}', 'trained_steps_{0}', 'messages_{0}', 'prompts_{0}')"
        assert await connection.scalar(text(left.format(old.run_id))) == 0
        assert await connection.scalar(text(left.format(other.run_id))) == 5


async def test_the_audit_says_pruned_and_finds_nothing_wrong(engine: AsyncEngine) -> None:
    run = await ended_run(engine)
    await no_violations(engine, run.name)
    await pruned(engine, run)
    report = await no_violations(engine, run.name)
    skipped = {
        check.name: check.skipped for check in report.checks if (check.skipped or "").startswith("pruned on ")
    }
    assert {"digests of steps", "announced steps are stored", "digests of prompts"} <= set(skipped)
    digests = {check.name: check.examined for check in report.checks}
    assert digests["digests of batches"] == 1, (
        "what was trained is still distinguishable from what was claimed"
    )


async def test_steps_that_are_gone_without_a_prune_are_a_violation(engine: AsyncEngine) -> None:
    run = await ended_run(engine)
    async with engine.begin() as connection:
        await connection.execute(text(f"ALTER TABLE steps DETACH PARTITION steps_{run.run_id}"))
    report = await audit(engine, run.name)
    assert report.violations
    assert any(check.name == "announced steps are stored" and check.found for check in report.checks)


async def read_for_long(reader: AsyncConnection) -> None:
    """A report: it holds its lock on the steps of all runs until it ends."""
    await reader.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    await reader.execute(text("SELECT count(*) FROM steps"))


async def test_nothing_else_waits_while_a_prune_waits_for_a_reader(engine: AsyncEngine) -> None:
    old = await ended_run(engine)
    busy = await builders.make_run(engine, small("busy"))
    [lease, *_] = await running(engine, busy)
    steps = [grown.event for grown in Tree(1).grow(busy.name, lease, 24)]
    async with engine.connect() as reader:
        # A long report: it holds its lock until it ends.
        await reader.execute(text("SELECT count(*) FROM steps"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pruned, engine, old)
            async with engine.connect() as connection:
                detaches = text("SELECT EXISTS (SELECT FROM pg_inherits WHERE inhdetachpending)")

                async def started() -> bool:
                    found = bool(await connection.scalar(detaches))
                    await connection.rollback()
                    return found

                await eventually(started)
                for step in steps:
                    await record(engine, busy, [step])
                await builders.make_run(engine, small("new"))
                assert await started(), "the prune waits still"
            await reader.rollback()
    assert (await kept(engine, busy))["steps"] == 24 and not (await kept(engine, old))["steps"]


async def test_a_prune_that_was_broken_off_is_finished_by_the_next(engine: AsyncEngine) -> None:
    old = await ended_run(engine)
    async with engine.begin() as connection:
        await prune.begin(connection, old)
    async with engine.connect() as reader:
        await read_for_long(reader)
        with pytest.raises(ConfigurationError, match=r"something has been reading steps for 0\.3 s"):
            await prune.drop(engine, old.run_id, patience_s=0.3)
    assert (await kept(engine, old))["messages"]
    await pruned(engine, old)
    await pruned(engine, old)
    assert not (await kept(engine, old))["messages"]


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(failpoints, "directory", tmp_path)
    return tmp_path


POINTS = ("prune.detach.before", "prune.detach.after", "prune.drop.before", "prune.drop.after")


@pytest.mark.parametrize("point", POINTS)
async def test_a_prune_whose_connection_breaks_is_finished_by_the_next(
    engine: AsyncEngine, armed: Path, point: str
) -> None:
    old = await ended_run(engine)
    (armed / point).write_text("raise")
    with pytest.raises(ConnectionResetError):
        await pruned(engine, old)
    await pruned(engine, old)
    await nothing_is_left(engine, old)


@pytest.mark.parametrize("name", ["prune.detach", "prune.drop"])
async def test_a_statement_of_a_prune_may_be_done_twice(engine: AsyncEngine, armed: Path, name: str) -> None:
    old = await ended_run(engine)
    (armed / name).write_text("duplicate\nduplicate\nduplicate")
    await pruned(engine, old)
    assert (armed / failpoints.HITS).read_text().count(f"{name} duplicate") == 3
    await nothing_is_left(engine, old)


PRUNE = """
import sys, anyio
from orchestrator.pool.engine import open_engine
from orchestrator.pool.prune import drop

async def prune(url, run):
    async with open_engine(url, size=1) as engine:
        await drop(engine, int(run))

anyio.run(prune, *sys.argv[1:])
"""


@pytest.mark.timeout(180)
async def test_a_prune_that_is_killed_anywhere_is_finished_by_the_next(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    old = await ended_run(engine)
    async with engine.begin() as connection:
        await prune.begin(connection, old)
    for point in POINTS:
        (tmp_path / point).write_text("exit")
    ended: list[int] = []
    with anyio.fail_after(150):
        while not ended or ended[-1]:
            done = await anyio.run_process(
                [sys.executable, "-c", PRUNE, database_url, str(old.run_id)],
                env={**os.environ, "PENSTOCK_FAILPOINTS": str(tmp_path)},
                check=False,
            )
            ended.append(done.returncode)
            assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    hits = [line.split()[0] for line in (tmp_path / failpoints.HITS).read_text().splitlines()]
    assert sorted(hits) == sorted(POINTS) and len(ended) == len(POINTS) + 1
    await nothing_is_left(engine, old)


async def nothing_is_left(engine: AsyncEngine, run: StoredRun) -> None:
    async with engine.connect() as connection:
        names = [f"{table}_{run.run_id}" for table in prune.PARTITIONED]
        left = text("SELECT count(*) FROM pg_class WHERE relname = ANY(:names)")
        assert await connection.scalar(left, {"names": names}) == 0
    await no_violations(engine, run.name)


async def test_what_may_still_be_needed_is_refused_in_one_sentence(engine: AsyncEngine) -> None:
    run = await builders.make_run(engine, small("live"))
    await refused(engine, run, "run 'live' is active: only an ended run can be pruned")
    await builders.ready_groups(engine, run, ["a", "b"], builders.Author(route=builders.one_expert))
    async with engine.begin() as connection:
        assert await batches.take(connection, run.run_id, POLICY, 2, 1)
        await connection.execute(text("UPDATE runs SET state = 'ended'"))
    await refused(engine, run, "batch 0 of run 'live' is claimed and not committed")
    old = await ended_run(engine)
    await builders.accepted(engine, old, ["later"], purpose=Purpose.EVAL)
    await refused(engine, old, "1 groups of run 'old' are still open")
    assert (await kept(engine, old))["steps"]


async def refused(engine: AsyncEngine, run: StoredRun, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        async with engine.begin() as connection:
            await prune.begin(connection, run)


async def test_a_pruned_run_takes_nothing_more(engine: AsyncEngine) -> None:
    run = await ended_run(engine)
    async with engine.begin() as connection:
        assert await takes_steps(connection, run.run_id)
    await pruned(engine, run)
    async with engine.begin() as connection:
        assert not await takes_steps(connection, run.run_id)


async def an_old_blob(engine: AsyncEngine, body: bytes) -> str:
    """A blob that no task has named for two days."""
    sha = sha256(body).hex()
    async with engine.begin() as connection:
        await blobs.store(connection, {sha: body})
        await connection.execute(text("UPDATE blobs SET at = at - interval '2 days'"))
    return sha


async def test_the_command_says_what_it_would_drop_and_then_drops_it(
    engine: AsyncEngine,
    database_url: str,
    nats_server: EmbeddedNats,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = await ended_run(engine)
    async with engine.begin() as connection:
        letter = {
            "run_id": run.run_id,
            "stream": "STEPS",
            "subject": "steps.old.1",
            "reason": "why",
            "deliveries": 1,
            "body": b"",
        }
        await connection.execute(
            insert(tables.dead_letters).values(**letter, at=text("now() - interval '3 days'"))
        )
        await connection.execute(insert(tables.dead_letters).values(**letter | {"body": b"newer"}))
    blob = await an_old_blob(engine, b"of no task")
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    write_template(tmp_path / "home", run.name, "")
    command = ["prune", "-c", str(tmp_path / "home"), "--dead-letters", "2", "--json"]

    def invoke(*more: str) -> dict[str, object]:
        done = CliRunner().invoke(app, [*command, *more])
        assert done.exit_code == 0, done.output
        found: dict[str, object] = json.loads(done.stdout)
        return found

    would = await anyio.to_thread.run_sync(lambda: invoke("--dry-run"))
    assert [each["table"] for each in would["dropped"]] == [f"{t}_{run.run_id}" for t in prune.PARTITIONED]  # type: ignore[attr-defined]
    assert all(each["rows"] > 0 and each["size"] > 0 for each in would["dropped"])  # type: ignore[attr-defined]
    assert (await kept(engine, run))["steps"]
    assert would["dead_letters"] == 1, "counted, and not deleted: it is deleted below"
    assert would["blobs"] == {"count": 1, "size": len(b"of no task")}
    async with engine.connect() as connection:
        assert await blobs.missing(connection, [blob]) == set()
    for age in ("-1", "nan", "1e9"):
        refused = await anyio.to_thread.run_sync(
            lambda age=age: CliRunner().invoke(app, [*command, "--dead-letters", age])  # type: ignore[misc]
        )
        output = f"{refused.output}{refused.exception}"
        assert refused.exit_code in (1, 2) and (
            "age of dead messages must be" in output or "--dead-letters" in output
        )
    assert (await kept(engine, run))["steps"], "nothing is dropped where anything is refused"
    done = await anyio.to_thread.run_sync(invoke)
    assert (done["dropped"], done["dead_letters"]) == (would["dropped"], 1)
    assert done["blobs"] == would["blobs"]
    assert not (await kept(engine, run))["steps"]
    async with engine.connect() as connection:
        assert await blobs.missing(connection, [blob]) == {blob}
    with pytest.raises(ConfigurationError):
        async with engine.connect() as connection:
            await get_run(connection, "unknown")
