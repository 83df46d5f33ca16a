"""A runner that was stopped, and comes back after its lease went to another: its late acts are harmless, and its late messages are counted."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.audit import audit
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.engine import Role, open_engine
from orchestrator.runner.rollout_runner import serve_rollouts
from sandboxes import procfs
from sandboxes.cleanup_daemon import cleanup_daemons
from sandboxes.owner import records
from sandboxes.reap import default_root
from tests.integration.runner import rig as runner_rig
from tests.integration.runner.rig import Rig, a_task, open_rig, runs, says
from tests.violations import nothing_found
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("faults")]

TTL_S = 9.0  # the holder renews it every third of this time, and learns then that it is lost
PATIENCE_S = 150.0
Opens = Callable[..., AbstractAsyncContextManager[Rig]]
PASSES = a_task(runs("echo done > out"), says("done"))
WAITS = a_task(runs("while [ ! -e go ]; do sleep 0.05; done; echo done > out"), says("done"))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that runs out and a message that comes again after its ack wait take their time, the more so on a busy machine."""
    monkeypatch.setattr(runner_rig, "PATIENCE_S", PATIENCE_S)


@pytest.fixture
def opens(database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path) -> Opens:
    @asynccontextmanager
    async def opened(ingest: bool = True) -> AsyncIterator[Rig]:
        async with open_rig(
            database_url, nats_server.url, directory, model, ingest=ingest, lease_ttl_s=TTL_S
        ) as rig:
            yield rig

    return opened


@contextmanager
def zombie(rig: Rig) -> Iterator["subprocess.Popen[bytes]"]:
    """A runner as a process of its own, killed with the context at the latest."""
    worker, given = rig.settings.worker, rig.settings
    arguments = [
        worker.run,
        worker.database_url,
        worker.nats_url,
        str(worker.journal),
        given.gateway_url,
        str(given.gateway_secret),
        str(given.gateway_socket),
        "0",
    ]
    process = subprocess.Popen([sys.executable, "-m", "tests.integration.runner.runner_process", *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def start_another(rig: Rig, directory: Path) -> None:
    worker = replace(rig.settings.worker, journal=directory / "another", owner="another")
    rig.tasks.start_soon(serve_rollouts, replace(rig.settings, worker=worker))


async def sandbox_of(pid: int) -> Path:
    """Wait for the sandbox of a process, with a program in it."""

    def works() -> Path | None:
        owned = [record for record in records(default_root()) if record.owner.pid == pid]
        assert all(record.worker for record in owned), "an audit would not know whose they are"
        found = [record.id for record in owned]
        alive = bool(found) and any(procfs.marked(procfs.MARKER, found[0]))
        return default_root() / found[0] if alive else None

    place = await eventually(works, within_s=PATIENCE_S)
    assert place is not None
    return place


async def held_by(rig: Rig, rollout: int, owner: str) -> None:
    """Wait until `owner` has the lease. The assignments of a stopped runner are assigned again once the bus has waited for its ack."""
    query = "SELECT 1 FROM rollouts WHERE rollout_id = :id AND lease_owner = :owner"
    await eventually(lambda: rig.rows(query, id=rollout, owner=owner), within_s=PATIENCE_S)


async def audited(rig: Rig) -> None:
    async with open_engine(rig.settings.worker.database_url, Role.READER) as reader:
        report = await audit(reader, rig.context.run)
        # Scripted replies are of no published version: I6 violations for that reason are expected.
        await nothing_found(
            reader, report, names=[each.name for each in report.checks if each.invariant != "I6"]
        )


async def test_a_runner_that_was_stopped_ends_its_work_when_it_comes_back_and_its_sandbox_with_it(
    opens: Opens, directory: Path
) -> None:
    async with opens() as rig:
        with zombie(rig) as process:
            rollout = await rig.submit(WAITS)
            await held_by(rig, rollout, "runner")
            left = await sandbox_of(process.pid)
            process.send_signal(signal.SIGSTOP)
            await rig.lease_runs_out(rollout)
            start_another(rig, directory)
            await held_by(rig, rollout, "another")
            (await sandbox_of(os.getpid()) / "files" / "app" / "go").touch()
            rig.start_verifier()
            assert await rig.verdict(rollout) == 1.0
            assert left.exists(), "its owner cannot clean up while it is stopped"
            process.send_signal(signal.SIGCONT)
            await rig.counted("leases_lost")
            await eventually(
                lambda: not left.exists() and not any(procfs.marked(procfs.MARKER, left.name)),
                within_s=PATIENCE_S,
            )
            open_sessions = "SELECT count(*) AS n FROM sessions WHERE state = 'open'"
            assert (await rig.rows(open_sessions))[0].n == 0
            assert len(await rig.rows("SELECT 1 FROM verdicts WHERE rollout_id = :id", id=rollout)) == 1
            await audited(rig)


async def test_a_result_that_comes_after_its_lease_went_to_another_is_counted_and_changes_nothing(
    opens: Opens, directory: Path
) -> None:
    async with opens(ingest=False) as rig:
        with zombie(rig) as process:
            rollout = await rig.submit(PASSES)
            sealed = "SELECT count(*) AS n FROM sessions WHERE state = 'sealed'"
            await rig.until(sealed, lambda row: row.n == 1)
            await until_in_journal(directory / "runner", "result")
            process.send_signal(signal.SIGSTOP)  # its result is durable, and on its way or there
            await rig.lease_runs_out(rollout)
            start_another(rig, directory)
            await held_by(rig, rollout, "another")
            await rig.until(sealed, lambda row: row.n == 2)
            rig.start_ingest()
            rig.start_verifier()
            assert await rig.verdict(rollout) == 1.0
            before = await rig.attempts(rollout)
            process.send_signal(signal.SIGCONT)
            await rig.counted("results_stale")
            assert await rig.attempts(rollout) == before
            assert len(await rig.rows("SELECT 1 FROM verdicts WHERE rollout_id = :id", id=rollout)) == 1
            await audited(rig)


async def until_in_journal(journal: Path, kind: str) -> None:
    await eventually(
        lambda: any(f":0:{kind}".encode() in path.read_bytes() for path in journal.glob("*.journal")),
        within_s=PATIENCE_S,
    )


async def test_leftovers_of_a_killed_runner_that_never_restarts_are_removed_by_another_worker_of_the_machine(
    opens: Opens,
) -> None:
    async with opens() as rig:
        rig.start_verifier()
        rollout = await rig.submit(WAITS)
        with zombie(rig) as process:
            await held_by(rig, rollout, "runner")
            left = await sandbox_of(process.pid)
            assert procfs.kill(cleanup_daemons(process.pid)) == 1
        await eventually(
            lambda: not left.exists() and not any(procfs.marked(procfs.MARKER, left.name)),
            within_s=PATIENCE_S,
        )
        assert not any(record.id == left.name for record in records(default_root()))
