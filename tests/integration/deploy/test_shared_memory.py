"""Shared memory of PostgreSQL servers that were killed, and whose directory was deleted or is never started again."""

import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import asyncpg
import pytest

from orchestrator.deploy.embedded import shared_memory
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.postgres_cluster import discard_cluster
from orchestrator.deploy.embedded.postgres_remains import kill_orphans
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]


@pytest.fixture
async def killed(services_directory: Path) -> AsyncIterator[tuple[Path, Path, int]]:
    """(data_dir, pgdata, inode of pgdata) of a server that was killed with all its processes."""
    data_dir = services_directory / "killed"
    server = EmbeddedPostgres(data_dir, durable=False)
    await server.start()
    pgdata = server.cluster.pgdata
    inode = pgdata.stat().st_ino
    running = server.cluster.running()
    assert running is not None and running.send(signal.SIGKILL)
    await running.gone(60.0)
    kill_orphans(pgdata)
    await server.stop()
    await eventually(lambda: left(inode))
    yield data_dir, pgdata, inode
    discard_cluster(data_dir)


def left(inode: int) -> list[int]:
    """The segments of the directory that no process is attached to."""
    return [each.shmid for each in shared_memory._segments() if each.inode == inode]


async def test_the_next_start_of_any_cluster_removes_what_a_killed_one_in_a_deleted_directory_left(
    killed: tuple[Path, Path, int], services_directory: Path
) -> None:
    data_dir, pgdata, inode = killed
    shutil.rmtree(pgdata)
    shutil.rmtree(data_dir)
    other = services_directory / "other"
    async with EmbeddedPostgres(other, durable=False) as server:
        assert not left(inode)
        assert not (shared_memory.root() / f"{other.stat().st_dev}-{inode}.json").exists()
        await works(server.url)
        shared_memory.remove_orphans()
        await works(server.url)  # its own segment is in use
    discard_cluster(other)


async def test_a_killed_cluster_starts_again_after_another_start_removed_what_it_left(
    killed: tuple[Path, Path, int],
) -> None:
    data_dir, _, inode = killed
    assert shared_memory.remove_orphans() and not left(inode)
    async with EmbeddedPostgres(data_dir, durable=False) as server:
        await works(server.url)


async def test_a_killed_cluster_that_is_discarded_leaves_nothing(killed: tuple[Path, Path, int]) -> None:
    data_dir, _, inode = killed
    discard_cluster(data_dir)
    assert not left(inode) and not data_dir.exists()


async def test_a_server_has_no_other_shared_memory_than_files_of_its_own(services_directory: Path) -> None:
    directory = services_directory / "files"
    async with EmbeddedPostgres(directory, durable=False) as server:
        owner = await asyncpg.connect(server.url)
        assert await owner.fetchval("SHOW dynamic_shared_memory_type") == "mmap"
        await owner.close()
        assert list((server.cluster.pgdata / "pg_dynshmem").iterdir())
    discard_cluster(directory)


async def works(url: str) -> None:
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


async def test_records_that_others_can_write_are_neither_read_nor_waited_for(
    services_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = services_directory / "planted"
    place.mkdir()
    place.chmod(0o777)
    os.mkfifo(place / "x.json")
    monkeypatch.setattr(shared_memory, "root", lambda: place)
    with pytest.raises(ValueError, match="is writable by other users"):
        await anyio.to_thread.run_sync(shared_memory.remove_orphans, abandon_on_cancel=True)
