"""Real PostgreSQL and NATS for the tests: one server of each per session, one fresh database per test.

- `postgres_server`: the session's EmbeddedPostgres (fsync off: these data may be lost). Do not kill it: tests about death
  start servers of their own.
- `nats_server`: the session's EmbeddedNats, shared: use a random run name or stream prefix.
- `database_url`: `postgresql://…` of a database that only this test sees, at the newest migration, dropped afterwards.
- `empty_database_url`: the same without any migration.

All are synchronous fixtures, so that plain and asynchronous tests can use them. The servers' files lie in a directory of their own, in
memory if there is room (a database is copied for every test), else under the temporary directory. The next session removes the
leftovers of a killed session from both.
"""

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic import command
from alembic.config import Config

from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.nats_server import running_nats
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.postgres_cluster import discard_cluster

REPOSITORY = Path(__file__).resolve().parent.parent
PREFIX = "penstock-tests-"
MEMORY = Path("/dev/shm")
MEMORY_FREE = 4 * 2**30  # a session takes some 0.5 GB
_TEMPLATE = "penstock_template"


def remove_leftovers() -> None:
    """Removes the directories of sessions that are dead, by the recorded pid and start time of their owner."""
    places = {Path(tempfile.gettempdir()), MEMORY}
    for directory in (found for place in places for found in place.glob(f"{PREFIX}*")):
        try:
            owner = ProcessId.read(directory / "owner.json")
            abandoned = time.time() - directory.stat().st_mtime > 3600
        except (FileNotFoundError, PermissionError):  # gone by now, or another user's
            continue
        if owner.alive if owner else not abandoned:
            continue
        if (server := running_nats(directory / "nats")) is not None:
            server.send(signal.SIGKILL)
        discard_cluster(directory / "postgres")
        shutil.rmtree(directory, ignore_errors=True)


def _memory() -> Path | None:
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_FREE
    return MEMORY if roomy and os.access(MEMORY, os.W_OK) else None


@pytest.fixture(scope="session")
def services_directory() -> Iterator[Path]:
    """The session's directory for servers; unlike `tmp_path`, PostgreSQL's unprivileged user can reach it."""
    remove_leftovers()
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_memory()))
    ProcessId.mine().write(directory / "owner.json")
    directory.chmod(0o755)
    yield directory
    discard_cluster(directory / "postgres")
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def services_runner() -> Iterator[asyncio.Runner]:
    """Runs the coroutines of synchronous fixtures, separate from the loop of the tests."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        yield runner


@pytest.fixture(scope="session")
def postgres_server(services_directory: Path, services_runner: asyncio.Runner) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(services_directory / "postgres", durable=False)
    services_runner.run(server.start())
    yield server
    services_runner.run(server.stop())


@pytest.fixture(scope="session")
def nats_server(services_directory: Path, services_runner: asyncio.Runner) -> Iterator[EmbeddedNats]:
    server = EmbeddedNats(services_directory / "nats")
    services_runner.run(server.start())
    yield server
    services_runner.run(server.stop())


class Databases:
    """Makes and drops databases over one connection of its own."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self._runner = runner
        self._url = urlsplit(url)
        self._connection = runner.run(asyncpg.connect(url))

    def create(self, name: str, *, template: str = "template1") -> str:
        """Returns the new database's URL."""
        self._runner.run(
            self._connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        )
        return self._url._replace(path=f"/{name}").geturl()

    def drop(self, name: str) -> None:
        """Drops a database, connections to it or not."""
        self._runner.run(self._connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'))

    def close(self) -> None:
        self._runner.run(self._connection.close())


@pytest.fixture(scope="session")
def databases(postgres_server: EmbeddedPostgres, services_runner: asyncio.Runner) -> Iterator[Databases]:
    databases = Databases(services_runner, postgres_server.url)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def template_database(databases: Databases) -> str:
    """The name of the session's migrated database. It has no connections: it is only copied."""
    url = databases.create(_TEMPLATE)
    upgrade_to_head(url)
    return _TEMPLATE


def upgrade_to_head(url: str) -> None:
    """`alembic upgrade head` against one database."""
    command.upgrade(alembic_config(url), "head")


def alembic_config(url: str) -> Config:
    config = Config(REPOSITORY / "alembic.ini")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


@pytest.fixture
def database_url(databases: Databases, template_database: str) -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    yield databases.create(name, template=template_database)
    databases.drop(name)


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    yield databases.create(name)
    databases.drop(name)
