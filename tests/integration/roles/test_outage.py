"""PostgreSQL is killed in the middle of the work and comes back: the orchestrator waits, loses nothing and does nothing twice."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.bus.journal import Journal
from orchestrator.contracts.errors import ServiceError
from orchestrator.contracts.events import RolloutFinished, TaskSubmitted, encode
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.ports import free_port
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.postgres_cluster import discard_cluster
from orchestrator.pool import leases
from orchestrator.pool.engine import check_revision, open_engine
from orchestrator.pool.transact import transact
from orchestrator.pool.transitions import count, lock_run
from orchestrator.publish import publish_tasks
from orchestrator.roles.ingest import ingest_steps
from orchestrator.roles.reaper import reaper
from orchestrator.runner.worker import WorkerSettings, open_worker
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import Timeouts, use
from tests.builders import make_run
from tests.integration.audit.audited import no_violations
from tests.integration.pool.rig import OWNER, context_of, counter, ended, report, rollout_row, running
from tests.integration.roles.rig import AUTHOR, TASK, Role, Runners, Stage, playing, staged, until
from tests.services import upgrade_to_head

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("faults")]


@pytest.fixture
def directory(services_directory: Path) -> Iterator[Path]:
    """A directory that PostgreSQL's unprivileged user can enter."""
    directory = services_directory / "postgres-that-dies"
    yield directory
    discard_cluster(directory)
    shutil.rmtree(directory, ignore_errors=True)


async def test_postgres_killed_twice_in_mid_run_costs_no_task_and_no_step(
    directory: Path, nats_server: EmbeddedNats
) -> None:
    # Durable: acknowledged data must be there after a kill.
    server = EmbeddedPostgres(directory)
    await server.start()
    try:
        url = server.url
        await anyio.to_thread.run_sync(upgrade_to_head, url)
        async with (
            open_engine(url) as engine,
            # Without a speed reward, no rollout is submitted to measure its noise.
            staged(
                engine, nats_server.url, rollout={"lease_ttl_s": 30.0}, reward={"speed_weight": 0.0}
            ) as stage,
        ):
            await stage.serves(0)
            runners = Runners(stage)
            roles: list[Role] = [*stage.core(), partial(reaper, stage.context), *runners.roles()]
            tasks = [("coding", TaskSubmitted(task=TASK, submission=f"t{n}")) for n in range(4)]
            async with playing(roles), stage.connect() as client, anyio.create_task_group() as group:
                group.start_soon(publish_tasks, client, stage.run.name, tasks, 60.0)
                for rows in (1, 4):
                    await until(partial(_at_least, stage, rows))
                    os.kill(server.pid, signal.SIGKILL)
                    await server.stop()  # reaps it
                    await server.start()
                    assert server.url == url
                await stage.reaches(4, "groups", state="ready")
            assert await stage.count("submissions", status="accepted") == 4
            assert await stage.count("rollouts", state="verified") == 8
            assert await stage.count("rewards") == 8
            assert await stage.count("dead_letters") == 0
            assert await counter(engine, stage.run, "leases_expired") == 0, "every lease got its grace"
            async with engine.connect() as connection:
                broken = "SELECT count(*) FROM rollouts r, broken_steps(r.run_id, r.rollout_id, r.attempt)"
                assert await connection.scalar(text(broken)) == 0
            await no_violations(engine, stage.run.name)
    finally:
        await server.stop()


async def _at_least(stage: Stage, rows: int) -> bool:
    return await stage.count("rollouts", state="verified") >= rows


async def test_a_database_that_is_not_there_or_not_migrated_is_named_in_one_sentence(
    empty_database_url: str,
) -> None:
    nowhere = "postgresql://user:secret@127.0.0.1:1/x"
    for url, sentence in (
        (nowhere, "127.0.0.1:1/x cannot be used"),
        (empty_database_url.replace("?", "_not?"), "it has no database"),
        ("mysql://x", "not a PostgreSQL URL"),
    ):
        with pytest.raises(ServiceError, match=sentence) as caught:
            async with open_engine(url):
                pass
        assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    async with open_engine(empty_database_url) as engine, engine.connect() as connection:
        with pytest.raises(ServiceError, match=r"revision none, .* needs \w+: run `alembic upgrade head`"):
            await check_revision(connection)


async def test_without_the_bus_the_dead_are_found_and_what_is_reported_waits_for_the_steps_that_it_keeps_back(
    database_url: str, services_directory: Path
) -> None:
    async with (
        open_engine(database_url) as engine,
        EmbeddedNats(services_directory / "nats-that-dies") as nats,
        staged(engine, nats.url, rollout={"lease_ttl_s": 3600.0}, queue={"max_attempts": 9}) as stage,
    ):
        await stage.serves(0)
        [lease, dead] = await running(engine, stage.run)
        steps = AUTHOR.trajectory(lease, stage.run.name, AUTHOR.ids(5, 5))
        async with playing([partial(reaper, stage.context), partial(ingest_steps, stage.context)]):
            assert await report(stage.context, ended(stage.run.name, lease, steps))
            os.kill(nats.pid, signal.SIGKILL)
            await nats.stop()  # reaps it
            await until(partial(_unreachable, stage))
            # Each time, a look finds the rollout whose holder is dead, and the lease of the reported one runs out again and again.
            for _ in range(3):
                attempt = (await rollout_row(engine, dead.rollout_id)).attempt
                await _now_dead(engine, dead.rollout_id, lease.rollout_id)
                await until(partial(_again, engine, dead.rollout_id, attempt + 1))
                row = await rollout_row(engine, lease.rollout_id)
                assert (row.state, row.attempt) == ("reported", 1), "its steps cannot come"
            await nats.start()
            await until(partial(_graced, engine, lease.rollout_id))
            for step in steps:
                await stage.send(subjects.steps(stage.run.name, str(lease.rollout_id)), step)
            await until(partial(_finished, engine, lease.rollout_id))
        assert (await rollout_row(engine, lease.rollout_id)).attempt == 1


NOW_DEAD = """UPDATE rollouts SET state = CASE rollout_id WHEN :dead THEN 'running' ELSE state END,
                                  lease_owner = CASE rollout_id WHEN :dead THEN 'dead' END,
                                  lease_until = now() - interval '1 second',
                                  graced_until = CASE rollout_id WHEN :reported THEN now() - interval '1 second' END
               WHERE rollout_id IN (:dead, :reported)"""


async def change(engine: AsyncEngine, statement: str, **parameters: object) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(statement), parameters)


async def _now_dead(engine: AsyncEngine, dead: int, reported: int) -> None:
    """A runner took the lease of `dead` and died; the lease of `reported`, which has had its grace, ran out as well."""
    await change(engine, NOW_DEAD, dead=dead, reported=reported)


async def _again(engine: AsyncEngine, rollout_id: int, attempt: int) -> bool:
    row = await rollout_row(engine, rollout_id)
    return (row.state, row.attempt) == ("queued", attempt)


async def _unreachable(stage: Stage) -> bool:
    return not stage.context.bus.reachable


async def _graced(engine: AsyncEngine, rollout_id: int) -> bool:
    row = await rollout_row(engine, rollout_id)
    assert (row.state, row.attempt) == ("reported", 1), "it was taken back at the moment of the bus's return"
    return row.graced_until is not None and row.graced_until == row.lease_until


async def _finished(engine: AsyncEngine, rollout_id: int) -> bool:
    return bool((await rollout_row(engine, rollout_id)).state == "finished")


async def test_a_worker_that_starts_while_nats_is_away_keeps_the_leases_of_what_its_journal_carries(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await make_run(
        engine, Config.model_validate({"run": {"name": "run"}, "rollout": {"lease_ttl_s": 3.0}})
    )
    [lease, dead] = await running(engine, run)
    result = ended(run.name, lease, AUTHOR.trajectory(lease, run.name, AUTHOR.ids(5, 5)))
    body, name = encode(result), f"{lease.rollout_id}:{lease.epoch}:0:result"
    async with Journal.open(tmp_path) as journal:
        await journal.append(
            Outgoing(
                subject=subjects.results_rollout(run.name),
                msg_id=name,
                schema=RolloutFinished.schema(),
                body=body,
            )
        )
    before = [(await rollout_row(engine, one.rollout_id)).lease_until for one in (lease, dead)]
    silent = f"nats://127.0.0.1:{free_port()}"
    settings = WorkerSettings(
        run=run.name,
        database_url=database_url,
        nats_url=silent,
        journal=tmp_path,
        provider="bubblewrap",
        slots=1,
        owner=OWNER,
    )

    async def starts() -> None:
        async with open_worker(settings, "starting"):
            pytest.fail("no NATS answers")

    async def renewed() -> bool:
        return bool((await rollout_row(engine, lease.rollout_id)).lease_until != before[0])

    async with playing([starts]):
        await until(renewed)
    assert (await rollout_row(engine, dead.rollout_id)).lease_until == before[1], (
        "of it nothing is in the journal"
    )


async def test_reapers_that_begin_again_and_again_find_the_dead(engine: AsyncEngine) -> None:
    run = await make_run(
        engine, Config.model_validate({"run": {"name": "run"}, "rollout": {"lease_ttl_s": 3600.0}})
    )
    [dead, _] = await running(engine, run)
    await change(engine, RUN_OUT, id=dead.rollout_id)
    before = (await rollout_row(engine, dead.rollout_id)).lease_until

    async def looked_at() -> bool:
        return bool((await rollout_row(engine, dead.rollout_id)).lease_until != before)

    for state in ("running", "queued"):
        async with playing([partial(reaper, context_of(engine, run))]):
            await until(looked_at)
        row = await rollout_row(engine, dead.rollout_id)
        assert row.state == state, "one full time to live, and no second one"
        await change(engine, GRACE_OVER, id=dead.rollout_id)
        before = (await rollout_row(engine, dead.rollout_id)).lease_until
    assert await counter(engine, run, "leases_expired") == 1


RUN_OUT = "UPDATE rollouts SET lease_until = clock_timestamp() - interval '1 second' WHERE rollout_id = :id"
GRACE_OVER = """UPDATE rollouts SET lease_until = lease_until - interval '2 hours', graced_until = graced_until - interval '2 hours'
 WHERE rollout_id = :id"""


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_step_of_the_databases_clock_costs_no_attempt_and_keeps_no_dead_lease(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    run = await make_run(
        engine, Config.model_validate({"run": {"name": "run"}, "rollout": {"lease_ttl_s": 60.0}})
    )
    [lease, _] = await running(engine, run)
    read, step = leases.clock, timedelta()

    async def clock(connection: AsyncConnection) -> datetime:
        return await read(connection) + step

    async def row() -> Any:
        return await rollout_row(engine, lease.rollout_id)

    async def graced() -> bool:
        return bool((found := await row()).graced_until == found.lease_until)

    async def lasts_a_ttl() -> bool:
        async with engine.connect() as connection:
            left = (await row()).lease_until - await read(connection)
        return bool(timedelta(seconds=30) < left < timedelta(seconds=61))

    monkeypatch.setattr(leases, "clock", clock)
    async with playing([partial(reaper, context_of(engine, run))]):
        await until(graced)
        async with engine.begin() as connection:
            await lock_run(connection, run.run_id)
            await connection.execute(text(SHIFT), {"run": run.run_id, "hours": hours})
            await connection.execute(text(DELAY), {"run": run.run_id, "hours": -hours})
            step = timedelta(hours=hours)
        await until(lasts_a_ttl)
    assert ((await row()).state, (await row()).attempt) == ("running", 1)
    assert await counter(engine, run, "leases_expired") == 0
    if hours < 0:
        async with engine.connect() as connection:
            waits = text("SELECT max(not_before) - clock_timestamp() FROM outbox WHERE run_id = :run")
            assert await connection.scalar(waits, {"run": run.run_id}) < timedelta(seconds=61)


# The ends of leases as they are to a clock that was set forward by so many hours.
SHIFT = """UPDATE rollouts SET lease_until = lease_until - make_interval(hours => :hours),
                    graced_until = graced_until - make_interval(hours => :hours) WHERE run_id = :run"""
DELAY = """INSERT INTO outbox (run_id, subject, schema, body, not_before)
 VALUES (:run, 'tests', 'penstock.tests/1', '{}', clock_timestamp() + make_interval(hours => :hours))"""


@asynccontextmanager
async def soon_broken(url: str) -> AsyncIterator[AsyncEngine]:
    with use(Timeouts(pool_idle_s=3.0)):
        async with open_engine(url) as engine:
            yield engine


async def test_a_process_that_stops_in_the_middle_of_a_transaction_holds_its_locks_for_a_bounded_time(
    database_url: str,
) -> None:
    """As SIGSTOP or a starved loop does. The transaction is repeated when the process continues."""
    tries = 0
    async with soon_broken(database_url) as stopping, open_engine(database_url) as other:
        run = await make_run(other, Config())
        seen = anyio.Event()

        async def silent(connection: AsyncConnection) -> None:
            nonlocal tries
            tries += 1
            await lock_run(connection, run.run_id)
            if tries == 1:
                seen.set()
                await taken.wait()
            await count(connection, run.run_id, "rewinds")

        async def waits(connection: AsyncConnection) -> None:
            await lock_run(connection, run.run_id)

        taken = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(transact, stopping, silent, at="lease.renewed"))
            await seen.wait()
            with anyio.fail_after(15):
                await transact(other, waits, at="lease.renewed")
            taken.set()
        assert tries == 2 and await counter(other, run, "rewinds") == 1


async def test_a_process_that_starts_while_postgres_is_away_waits_for_it(directory: Path) -> None:
    server = EmbeddedPostgres(directory, durable=False)
    await server.start()
    url = server.url
    await server.stop()
    try:
        async with anyio.create_task_group() as tasks:
            opened = anyio.Event()

            async def begin() -> None:
                async with open_engine(url, patience_s=60.0):
                    opened.set()

            tasks.start_soon(begin)
            with anyio.move_on_after(1.5):  # longer than two of its looks
                await opened.wait()
            assert not opened.is_set()
            await server.start()
            assert server.url == url
            with anyio.fail_after(30):
                await opened.wait()
    finally:
        await server.stop()
