"""The disk of a run directory, full: its services die and restart as long as it is full, and afterwards the acknowledged data are there."""

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import asyncpg
import nats
import pytest
from nats.errors import Error as NatsError
from structlog.testing import capture_logs

from ops.lab.chaos import disk
from orchestrator.deploy.embedded.disk_space import ENOUGH_BYTES, NEEDED_BYTES, short
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.nats_server import prepare_nats
from orchestrator.deploy.embedded.postgres_cluster import PostgresCluster, prepare_cluster
from orchestrator.deploy.embedded.process_spec import ProcessSpec, ProcessState, RestartPolicy
from orchestrator.deploy.embedded.service_specs import nats_spec, postgres_spec
from orchestrator.deploy.embedded.supervisor import Supervisor
from tests.integration.deploy.small_disk import directory, small_disk
from tests.waiting import eventually, repeatedly

__all__ = ["directory", "small_disk"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]

PATIENCE = RestartPolicy(limit=2, window_s=600, first_delay_s=0.01, max_delay_s=0.1)
LEFT_BYTES = 1 << 20  # enough for the file with a process's number
# Starts with 20 MB of room, in blocks of 4 KB, or dies, as a runner does without room for its journal.
NEEDY = ("/bin/sh", "-c", '[ "$(stat -f -c %a "$0")" -gt 5000 ] || exit 1; exec sleep 1000')


async def write(cluster: PostgresCluster, kept: list[int]) -> None:
    """Commit numbers, each in a new segment of the log, until the server refuses or dies; `kept` are the acknowledged ones."""
    connection = await asyncpg.connect(cluster.url, timeout=5)
    try:
        while True:
            await connection.execute("INSERT INTO kept VALUES ($1)", len(kept))
            kept.append(len(kept))
            await connection.execute("SELECT pg_switch_wal()")
    finally:
        connection.terminate()


@asynccontextmanager
async def kept_full(place: Path) -> AsyncIterator[None]:
    """Keeps a full disk full when a dying service frees space: a log's segment, a store's file. The little that is left is for numbers
    of processes."""
    with (place / disk.BALLAST).open("r+b", buffering=0) as ballast:

        def fill() -> None:
            found, size = os.fstatvfs(ballast.fileno()), os.fstat(ballast.fileno()).st_size
            free = found.f_bavail * found.f_frsize
            if free > LEFT_BYTES:
                with contextlib.suppress(OSError):  # another writer was quicker
                    os.posix_fallocate(ballast.fileno(), size, free - LEFT_BYTES)
            elif free < LEFT_BYTES // 2:
                os.ftruncate(ballast.fileno(), size - LEFT_BYTES)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(repeatedly, fill, every_s=0.002))
            yield
            tasks.cancel_scope.cancel()


async def publish(url: str, timeout_s: float = 0.5) -> None:
    """TimeoutError, or another error of NATS, if the stream does not accept the message."""
    client = await nats.connect(url, allow_reconnect=False)
    try:
        await client.jetstream().publish("some.thing", b"x" * 500_000, timeout=timeout_s)
    finally:
        await client.close()


@pytest.mark.parametrize("small_disk", [224], indirect=True)
async def test_deaths_of_a_full_run_directory_do_not_count_and_with_room_everything_comes_up_with_nothing_lost(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.deploy.embedded.supervisor.POLL_INTERVAL_S", 0.05)
    layout = RunLayout(small_disk / "run")
    layout.create()
    cluster, home = prepare_cluster(layout.postgres), prepare_nats(layout.nats)
    kept: list[int] = []
    needy = ProcessSpec(name="needy", argv=(*NEEDY, str(layout.root)), restart=PATIENCE)
    services = [replace(spec, restart=PATIENCE) for spec in (postgres_spec(cluster), nats_spec(home))]
    with capture_logs() as logs, anyio.fail_after(100):
        async with Supervisor(layout) as supervisor:

            async def until_ready() -> None:
                await supervisor.ready()  # once; raises for abandoned processes
                while any(supervisor.status(name).state is not ProcessState.READY for name in names):
                    await supervisor.change()

            supervisor.add(*services, needy)
            names = ("postgres", "nats", "needy")
            await until_ready()
            connection = await asyncpg.connect(cluster.url)
            await connection.execute("CREATE TABLE kept (n int)")
            await connection.close()
            client = await nats.connect(home.url)
            await client.jetstream().add_stream(name="SOME", subjects=["some.>"], max_bytes=2 << 30)
            await client.close()
            await publish(home.url, timeout_s=20)

            disk.fill(small_disk)
            with pytest.raises((NatsError, TimeoutError)):
                while True:
                    await publish(home.url)
            async with kept_full(small_disk):

                async def often_died() -> bool:
                    # At first, and after a start in a moment with room.
                    if (pid := supervisor.status("needy").pid) is not None and short([small_disk]):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    with contextlib.suppress(
                        OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError
                    ):
                        await write(cluster, kept)
                    assert all(supervisor.status(name).state is not ProcessState.FAILED for name in names)
                    often = 2 * PATIENCE.limit
                    return all(supervisor.status(name).restarts > often for name in ("postgres", "needy"))

                await eventually(often_died, within_s=100)
                with pytest.raises((NatsError, TimeoutError)):
                    await publish(home.url)

            disk.empty(small_disk)
            await until_ready()
            connection = await asyncpg.connect(cluster.url)
            found = await connection.fetch("SELECT n FROM kept")
            await connection.close()
            assert kept and {row["n"] for row in found} >= set(kept)
            while True:
                with contextlib.suppress(OSError, NatsError, TimeoutError):
                    await publish(home.url)
                    break
            await until_ready()  # the process killed last, too: its death may not have been noticed before
    reports = [line for line in logs if line["event"] == "disk.full"]
    assert {line.get("process") for line in reports} >= {None, "postgres", "needy"}
    assert f"the disk of {layout.root} is full" in reports[0]["error"]


async def test_a_disk_is_short_of_room_below_two_segments_of_the_log_and_missing_directories_are_skipped(
    small_disk: Path,
) -> None:
    missing = small_disk / "missing"
    found = short([missing, small_disk])
    assert found is not None and found.directory == small_disk and 0 < found.free_bytes < NEEDED_BYTES
    assert (
        str(found) == f"the disk of {small_disk} is full ({found.free_bytes >> 20} MB free): free space there"
    )
    assert short([missing]) is None
    assert short([small_disk], found.free_bytes) is None and NEEDED_BYTES < ENOUGH_BYTES
