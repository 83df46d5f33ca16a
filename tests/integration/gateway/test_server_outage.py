"""PostgreSQL is away for several times to live of a rollout server's lease, with two gateways that want it."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.postgres_cluster import discard_cluster
from orchestrator.gateway.servers.lease import ServerLease
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.server_leases import ServerRows
from orchestrator.settings.config import Config
from tests.builders import make_run
from tests.integration.audit.audited import no_violations
from tests.services import upgrade_to_head
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("faults")]

TTL_S = 3.0
URL = "http://127.0.0.1:30000"


@pytest.fixture
def directory(services_directory: Path) -> Iterator[Path]:
    """A directory that PostgreSQL's unprivileged user can enter."""
    directory = services_directory / "postgres-of-servers"
    yield directory
    discard_cluster(directory)
    shutil.rmtree(directory, ignore_errors=True)


async def test_a_rollout_server_stays_with_its_gateway_through_an_outage_and_goes_to_another_once_that_is_dead(
    directory: Path,
) -> None:
    server = EmbeddedPostgres(directory)  # durable: a lease that was granted must be there after the kill
    await server.start()
    try:
        await anyio.to_thread.run_sync(upgrade_to_head, server.url)
        async with (
            open_engine(server.url) as engine,
            open_engine(server.url, Role.GATEWAY) as gateway,
            anyio.create_task_group() as tasks,
        ):
            made = await make_run(engine, Config())
            run = made.run_id
            one, two = (
                ServerLease(ServerRows(gateway, run, owner=name, ttl_s=TTL_S), URL) for name in ("one", "two")
            )
            life = anyio.CancelScope()

            async def live() -> None:
                with life:
                    await one.run()

            tasks.start_soon(live)
            await eventually(lambda: one.epoch == 1)
            tasks.start_soon(two.run)
            os.kill(server.pid, signal.SIGKILL)
            await server.stop()  # reaps it
            with anyio.move_on_after(3 * TTL_S):
                await two.moved.wait()
            await server.start()
            with anyio.move_on_after(3 * TTL_S):  # `two` takes only a lease that ran out one time to live ago
                await two.moved.wait()
            assert (one.epoch, two.epoch) == (1, None)
            life.cancel()
            await eventually(lambda: two.epoch == 2)
            await no_violations(engine, made.name)
            tasks.cancel_scope.cancel()
    finally:
        await server.stop()
