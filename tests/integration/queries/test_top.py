"""`penstock top` over a real data pool: the content of its tables, its message when Postgres is away, and its end."""

import json
import os
import pty
import secrets
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from rich.text import Text
from sqlalchemy import func, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine
from textual.widgets import DataTable, Static
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.cli.terminal import plain
from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.home import write_template
from orchestrator.pool import batches, tables
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.runs import StoredRun
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.settings.config import Config
from orchestrator.top.app import Top
from orchestrator.top.picture import picture
from orchestrator.top.snapshot import Snapshot, snapshot
from tests import builders
from tests.integration.pool.rig import Tree, record, running, small
from tests.processes import closing

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


@pytest.fixture
async def run(engine: AsyncEngine) -> AsyncIterator[StoredRun]:
    """A committed batch of positions 0 and 1, position 2 running with a step, 3 ready, a server and a process that hangs."""
    run = await builders.make_run(engine, small(f"r{secrets.token_hex(4)}", window_fraction=0.5))
    await builders.ready_groups(engine, run, ["a", "b"], builders.Author())
    async with engine.begin() as connection:
        await builders.publish_first(connection, run)
        batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
        assert batch is not None
        metrics = [{"loss": 0.25, "performance": 0.5}]
        assert await batches.commit(
            connection,
            run.run_id,
            run.name,
            batch=batch,
            new=NewVersion(version=1, parent=0, path="/v1", manifest_sha="11"),
            metrics=metrics,
            subject="policy.x",
        )
    [lease, _] = await running(engine, run)
    await record(engine, run, [each.event for each in Tree(1).grow(run.name, lease, 2)])
    await builders.ready_groups(engine, run, ["d"], builders.Author())
    loops = [
        {
            "name": "attempt",
            "item": "\x1b[2Jrollout",
            "waits_for": "",
            "resting": False,
            "age_s": 9.0,
            "stuck_s": 7.0,
            "ended": "",
            "restarts": 0,
        }
    ]
    async with engine.begin() as connection:
        server = {"url": "http://127.0.0.1:9", "state": "ready", "version": 1, "owner": "host:/x/gateway"}
        await connection.execute(insert(tables.rollout_servers).values(run_id=run.run_id, **server))
        process = {"host": "here", "process": "runner", "pid": 1, "loops": loops}
        await connection.execute(insert(tables.processes).values(run_id=run.run_id, **process))
    yield run


async def looked(engine: AsyncEngine, run: StoredRun) -> Snapshot:
    async with engine.connect() as connection:
        return await snapshot(connection, Config.from_json(run.config))


async def test_the_queue_is_drawn_with_its_window(engine: AsyncEngine, run: StoredRun) -> None:
    found = await looked(engine, run)
    drawn = picture(found.queue, 80)
    assert (drawn.cells, drawn.below) == ("..Rr", "  ^--")
    narrow = picture(found.queue, 3)
    assert (narrow.cells, narrow.first, narrow.last) == ("..R", 0, 2)
    [first, second] = found.work.rollouts
    assert {(first.steps, first.state), (second.steps, second.state)} == {(2, "running"), (0, "running")}
    assert found.work.states == {"running": 2}
    assert (found.work.trainer.version, found.work.trainer.train_step, found.work.trainer.performances) == (
        1,
        1,
        [0.5],
    )


def rows(top: Top, name: str) -> list[list[str]]:
    table: DataTable[Text] = top.query_one(f"#{name}", DataTable)
    return [[cell.plain for cell in table.get_row_at(n)] for n in range(table.row_count)]


def text_of(top: Top, name: str) -> str:
    return str(top.query_one(f"#{name}", Static).render())


async def test_the_terminal_shows_the_run_goes_on_and_ends_with_q(
    engine: AsyncEngine, run: StoredRun
) -> None:
    top = Top(lambda: looked(engine, run), plain, period_s=3600)
    async with top.run_test(size=(150, 40)) as pilot:
        await top.workers.wait_for_complete()
        await pilot.pause()
        assert text_of(top, "why").startswith(f"run {run.name} is active. ")
        assert (text_of(top, "cells"), text_of(top, "below")) == ("..Rr", "  ^--")
        assert [row[5] for row in rows(top, "rollouts")] == ["running", "running"]
        [server] = rows(top, "servers")
        assert server == ["http://127.0.0.1:9", "ready", "1", "gateway", ""]
        [process] = rows(top, "processes")
        assert process[0] == "runner" and process[3] == "HANGS for 7.0s; attempt: \\x1b[2Jrollout"
        async with engine.begin() as connection:
            drains = {"draining": func.now(), "holds": {"self": 2}}
            await connection.execute(tables.processes.update().values(**drains))
            await connection.execute(tables.rollout_servers.update().values(draining=func.now()))
        assert "version 1, train step 1 of batch 0" in text_of(top, "trainer")
        await builders.accepted(engine, run, ["e"])
        await builders.dispatch(engine, run)
        await pilot.press("r")
        await top.workers.wait_for_complete()
        await pilot.pause()
        assert text_of(top, "cells") == "..Rrw"
        [[*_, works]], [[*_, detail]] = rows(top, "processes"), rows(top, "servers")
        assert "drains, 2 left; attempt" in works and detail == "drains: no new calls"
        await pilot.press("p")
        assert "PAUSED" in text_of(top, "legend")
        await pilot.press("q")
        await pilot.pause()
    assert not top.is_running and top.return_code == 0


async def test_it_looks_again_by_itself_and_says_when_postgres_is_away(
    engine: AsyncEngine, run: StoredRun
) -> None:
    looks = 0
    away = anyio.Event()

    async def sometimes() -> Snapshot:
        nonlocal looks
        looks += 1
        if away.is_set():
            raise ServiceError("PostgreSQL is away")
        return await looked(engine, run)

    top = Top(sometimes, plain, period_s=0.05)
    async with top.run_test(size=(60, 20)) as pilot:

        async def until(begins: str) -> None:
            with anyio.fail_after(60):
                while not text_of(top, "why").startswith(begins):
                    await pilot.pause(0.01)

        await until(f"run {run.name} is active")
        shown = rows(top, "rollouts")
        away.set()
        await until("PostgreSQL is away. The data below is stale.")
        still = rows(top, "rollouts")  # one more look may have been under way: its seconds are newer
        assert [row[:6] for row in still] == [row[:6] for row in shown] and len(shown) == 2
        away = anyio.Event()
        await until(f"run {run.name} is active")
        assert looks >= 3


async def test_a_look_that_takes_longer_than_a_second_is_waited_for(
    engine: AsyncEngine, run: StoredRun
) -> None:
    began = 0
    go_on = anyio.Event()

    async def slow() -> Snapshot:
        nonlocal began
        began += 1
        await go_on.wait()
        return await looked(engine, run)

    top = Top(slow, plain, period_s=0.01)
    async with top.run_test(size=(60, 20)) as pilot:
        for _ in range(20):
            await pilot.pause(0.01)
        assert began == 1
        go_on.set()
        with anyio.fail_after(60):
            while top.seen is None:
                await pilot.pause(0.01)


def home(tmp_path: Path, run: StoredRun, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    write_template(tmp_path, run.name, "")
    return tmp_path


async def test_without_a_terminal_it_is_printed_once(
    run: StoredRun, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = str(home(tmp_path, run, database_url, monkeypatch))
    done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, ["top", "-c", here]))
    assert done.exit_code == 0, done.exception
    assert (
        "this is not a terminal" in done.stderr
        and "\n..Rr\n  ^--\n" in done.stdout
        and "\x1b" not in done.stdout
    )
    as_json = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, ["top", "-c", here, "--json"]))
    assert json.loads(as_json.stdout)["queue"]["head"] == 2 and as_json.stderr == ""


async def test_in_a_real_terminal_q_ends_it_with_status_0(
    run: StoredRun, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = str(home(tmp_path, run, database_url, monkeypatch))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 140))
    command = [sys.executable, "-m", "orchestrator.cli", "top", "-c", here]
    environment = {**os.environ, "TERM": "xterm-256color"}
    try:
        with anyio.fail_after(60):
            started = await anyio.open_process(
                command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
            )
            async with closing(started) as process:
                drawn = b""
                while b"Quit" not in drawn or b"is active" not in drawn:
                    await anyio.wait_readable(ours)
                    drawn += os.read(ours, 1 << 16)
                os.write(ours, b"q")

                async def drain() -> None:
                    while True:
                        await anyio.wait_readable(ours)
                        os.read(ours, 1 << 16)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(drain)
                    assert await process.wait() == 0
                    tasks.cancel_scope.cancel()
    finally:
        os.close(ours)
        os.close(theirs)


async def test_the_looks_of_top_read_open_work_by_index(engine: AsyncEngine, run: StoredRun) -> None:
    async with engine.connect() as connection:
        await connection.execute(text("SET LOCAL enable_seqscan = off"))
        from orchestrator.queries import activity

        for query in (activity._STATES, activity._ROLLOUTS):
            plan = await connection.scalars(text("EXPLAIN " + query.text), {"run": run.run_id, "n": 5})
            assert "rollouts_unfinished" in "\n".join(plan.all())
