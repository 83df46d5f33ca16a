"""The port of a dead server is free for any user of the machine: the run goes on, and no secret reaches who takes it."""

import os
import signal
import socket
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import anyio.from_thread
import asyncpg
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.bus.address_file import url_of_file
from orchestrator.bus.base import BusUnavailable, Outgoing
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.embedded.held_socket import hold
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.nats_server import prepare_nats, recorded_nats_url
from orchestrator.deploy.embedded.own_urls import embedded_nats, embedded_postgres
from orchestrator.deploy.embedded.ports import LOOPBACK, free_port
from orchestrator.deploy.embedded.postgres_cluster import (
    discard_cluster,
    prepare_cluster,
    recorded_tcp_url,
    recorded_url,
)
from orchestrator.deploy.embedded.process_spec import ProcessSpec, ProcessState, RestartPolicy
from orchestrator.deploy.embedded.service_specs import nats_spec, postgres_spec
from orchestrator.deploy.embedded.supervisor import Supervisor
from orchestrator.deploy.held_ports import check_not_taken
from orchestrator.deploy.home import Home, write_template
from orchestrator.deploy.stack import up
from orchestrator.gateway.servers.client import RolloutServerClient, RolloutServerUnreachable
from orchestrator.pool.engine import open_engine
from orchestrator.pool.transact import transact
from orchestrator.runtime.inherited import SOCKETS
from orchestrator.runtime.metrics import Target, served
from orchestrator.runtime.peer import StrangeServer, check_peer
from tests.squatter import NATS, POSTGRES, USER, Squatter, squatting
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root starts a program of another user")

SERVER = """
import sys
from orchestrator.runtime.inherited import inherited

listener = inherited(int(sys.argv[1]))
listener.setblocking(True)
while True:
    connection, _ = listener.accept()
    connection.sendall(b"served")
    connection.close()
"""


async def killed(supervisor: Supervisor, name: str) -> None:
    """kill -9, and wait until the next life is ready."""
    first = supervisor.status(name).pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with anyio.fail_after(60):
        while (now := supervisor.status(name)).state is not ProcessState.READY or now.pid == first:
            assert now.state is not ProcessState.FAILED, now.detail
            await supervisor.change()


def after_the_squatter(spec: ProcessSpec, squatters: list[Squatter]) -> ProcessSpec:
    """Each life but the first starts once every squatter has its port."""
    prepare = spec.before_start
    assert prepare is not None

    def before_start() -> str | None:
        for squatter in squatters:
            anyio.from_thread.run(squatter.until_listening)
        return prepare()

    return replace(spec, before_start=before_start)


@as_root
async def test_the_login_of_nats_is_sent_to_no_program_of_another_user(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "url"
    file.write_text(f"nats://the-token@{LOOPBACK}:{port}\n")
    with squatting(tmp_path, port, greeting=NATS) as squatter:
        await squatter.until_listening()
        with pytest.raises(
            BusUnavailable,
            match=rf"is not a server of user 0 on this machine .it is of user {USER}.: it gets no secret",
        ):
            async with NatsBus.connect(url_of_file(file), patience_s=1.0):
                pass
        assert squatter.connections > 0 and squatter.received == b""
        with pytest.raises(BusUnavailable):  # a server that a person names is not checked
            async with NatsBus.connect(file.read_text().strip(), patience_s=5.0):
                pass
        assert b"the-token" in squatter.received


@as_root
async def test_the_login_of_another_runs_nats_in_the_environment_is_sent_to_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = RunLayout(tmp_path / "first" / ".penstock"), tmp_path / "other"
    first.nats.mkdir(parents=True)
    home = prepare_nats(first.nats)
    write_template(other, "test", "")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("NATS_URL", home.url)  # as eval "$(penstock env -c first)" leaves it
    with pytest.raises(ServiceError, match="and nothing answers at"):
        await up(Home.at(other), only=("orchestrator",))
    lying = NATS.replace(b'"server_id"', b'"server_name":"another","server_id"')
    with squatting(tmp_path, home.port, greeting=lying) as squatter:
        await squatter.until_listening()
        with pytest.raises(ServiceError, match=f"a program of user {USER} answers .* the login is not sent"):
            await up(Home.at(other), only=("orchestrator",))
        await eventually(lambda: squatter.connections >= 1)
        assert squatter.received == b""


@as_root
async def test_no_program_of_another_user_gets_a_request_for_a_rollout_server_of_ours(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    with squatting(tmp_path, port) as squatter:
        await squatter.until_listening()
        async with RolloutServerClient(url, key="the-key", user=os.getuid()) as client:
            with pytest.raises(RolloutServerUnreachable, match=f"it is of user {USER}"):
                await client.pause()
        await eventually(lambda: squatter.connections == 1)
        assert squatter.received == b""
        # A server of any user gets it.
        async with RolloutServerClient(url, key="the-key") as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.pause)
            await eventually(lambda: b"the-key" in squatter.received)
            tasks.cancel_scope.cancel()


async def test_a_connection_that_no_process_has_accepted_belongs_to_no_user() -> None:
    """The kernel gives it to user 0, or to the user of the listener."""
    listener = hold()
    with socket.create_connection((LOOPBACK, listener.port)) as connection:
        ends = connection.getsockname(), connection.getpeername()
        with pytest.raises(StrangeServer, match="no process here has accepted it"):
            check_peer(*ends, os.getuid())
    listener.close()


async def test_nats_comes_back_on_another_port_and_its_clients_follow_it(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "run")
    layout.nats.mkdir(parents=True)
    home = prepare_nats(layout.nats)
    url, with_port, port = recorded_nats_url(layout.nats), home.url, home.port
    assert url is not None
    squatters: list[Squatter] = []
    async with Supervisor(layout) as supervisor:
        supervisor.add(after_the_squatter(nats_spec(home), squatters))
        await supervisor.ready()
        async with NatsBus.connect(url) as bus:
            await bus.ensure_streams()
            with squatting(tmp_path, port, greeting=NATS) as squatter:
                squatters.append(squatter)
                await killed(supervisor, "nats")
                assert squatter.listens and home.port != port
                moved = f"moved to port {home.port}: another program listens on its port {port}"
                assert supervisor.status("nats").detail == moved
                message = Outgoing(subject="tasks.taken.general", msg_id="after", schema="Test/1", body=b"{}")
                assert await bus.publish(message)
                async with NatsBus.connect(url):
                    pass
                if os.getuid() == 0:
                    assert home.token.encode() not in squatter.received
    # A shell that has the URL of the former port is understood, too.
    assert embedded_nats(layout, with_port) == embedded_nats(layout, home.url) == url
    assert embedded_nats(layout, f"nats://other@{LOOPBACK}:{port}") is None


async def test_postgres_comes_back_without_its_port_and_the_password_goes_to_no_other_program(
    services_directory: Path, tmp_path: Path
) -> None:
    layout = RunLayout(services_directory / "taken-port")
    cluster = prepare_cluster(layout.postgres, durable=False)
    url, over_tcp = recorded_url(layout.postgres), recorded_tcp_url(layout.postgres)
    assert url is not None and over_tcp is not None
    assert embedded_postgres(layout, over_tcp) == embedded_postgres(layout, "") == url
    squatters: list[Squatter] = []
    async with Supervisor(layout) as supervisor:
        supervisor.add(after_the_squatter(postgres_spec(cluster), squatters))
        await supervisor.ready()
        for each in (url, over_tcp):
            await (await asyncpg.connect(each)).close()
        async with open_engine(url, size=1) as engine:
            with squatting(tmp_path, cluster.port, answer=POSTGRES) as squatter:
                squatters.append(squatter)
                await killed(supervisor, "postgres")
                alone = f"only on its Unix socket: another program listens on its port {cluster.port}"
                assert squatter.listens and supervisor.status("postgres").detail == alone

                async def select(connection: AsyncConnection) -> object:
                    return await connection.scalar(text("select 7"))

                assert await transact(engine, select, at="tests") == 7
                assert (squatter.connections, squatter.received) == (0, b"")
                with pytest.raises(
                    (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
                ):
                    await asyncpg.connect(over_tcp, timeout=5)
                assert (
                    cluster.password.encode() in squatter.received
                )  # which is why no process of ours uses it
        await killed(supervisor, "postgres")
        await (await asyncpg.connect(over_tcp)).close()  # the port is free again
        assert supervisor.status("postgres").detail is None
    discard_cluster(layout.postgres)


async def test_no_other_program_gets_the_port_of_a_server_that_inherits_its_socket(tmp_path: Path) -> None:
    held = hold()
    spec = ProcessSpec(
        name="server",
        argv=(sys.executable, "-c", SERVER, str(held.port)),
        sockets=(held,),
        restart=RestartPolicy(first_delay_s=1.0, max_delay_s=1.0),
    )

    async def reply() -> bytes:
        try:
            async with await anyio.connect_tcp(LOOPBACK, held.port) as stream:
                return await stream.receive()
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return b""

    async with Supervisor(RunLayout(tmp_path / "run")) as supervisor:
        supervisor.add(spec)
        await supervisor.ready()
        with squatting(tmp_path, held.port, greeting=b"stolen") as squatter:
            for _ in range(3):
                assert await reply() == b"served"
                first = supervisor.status("server").pid
                assert first is not None
                os.kill(first, signal.SIGKILL)
                await eventually(lambda: supervisor.status("server").state is ProcessState.BACKOFF)
                assert await reply() == b""  # at once: no process serves
                await eventually(lambda: supervisor.status("server").state is ProcessState.READY)
            assert await reply() == b"served"
            assert squatter.process.poll() is None and not squatter.listens
        supervisor.request_stop()
    held.close()


async def test_metrics_at_a_fixed_port_inherit_their_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = hold()
    monkeypatch.setenv(SOCKETS, f"0,{held.descriptor},9999")  # others are not ours
    target = Target(file=tmp_path / "m.json", run="r", process="p", host=LOOPBACK, port=held.port)
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            with served(CollectorRegistry(), target) as address:
                async with session.get(f"http://{address}/healthz") as answer:
                    assert (address, answer.status) == (f"{LOOPBACK}:{held.port}", 200)
    held.close()


async def test_a_program_that_inherits_no_socket_waits_for_its_port_and_the_run_is_not_given_up(
    tmp_path: Path,
) -> None:
    port = free_port()
    spec = ProcessSpec(
        name="server",
        argv=(sys.executable, "-m", "http.server", str(port), "--bind", LOOPBACK),
        before_start=partial(check_not_taken, port),
        restart=RestartPolicy(limit=2, first_delay_s=0.01, max_delay_s=0.02),
    )
    seen: list[ProcessState] = []
    with squatting(tmp_path, port) as squatter:
        await squatter.until_listening()
        async with Supervisor(
            RunLayout(tmp_path / "run"), on_event=lambda event: seen.append(event.state)
        ) as supervisor:
            supervisor.add(spec)
            await eventually(lambda: seen.count(ProcessState.BACKOFF) > 5)
            detail = supervisor.status("server").detail
            assert detail == (
                f"it cannot be started: another program listens on its port {port}; it is started as soon as the port is free"
            )
            squatter.process.kill()
            await supervisor.ready()
    assert ProcessState.FAILED not in seen
