"""Private servers for the measurements of the data pool, and the CPU time that they used."""

import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.deploy.embedded.postgres_cluster import discard_cluster
from orchestrator.deploy.stack import upgrade
from orchestrator.pool.engine import open_engine
from orchestrator.pool.runs import StoredRun, ensure_run
from orchestrator.settings.config import Config

FREE_BYTES = {False: 25 << 30, True: 2 << 30}  # free disk space that the full and the small size need


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """PostgreSQL with the product's settings and the newest schema, and NATS; only the measurements use them."""

    url: str
    engine: AsyncEngine
    nats: EmbeddedNats
    nats_dir: Path

    async def value(self, statement: str, **parameters: object) -> float:
        """The only value of a statement, as a number."""
        async with self.engine.connect() as connection:
            return float(await connection.scalar(text(statement), parameters) or 0)

    async def alone(self, statement: str) -> None:
        """Execute a statement outside a transaction."""
        async with self.engine.connect() as plain:
            connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text(statement))

    async def make_run(self, name: str, **sections: dict[str, object]) -> tuple[StoredRun, Config]:
        """Make a run with this configuration."""
        config = Config.model_validate({"run": {"name": name}, **sections})
        async with self.engine.begin() as connection:
            return await ensure_run(connection, name, config.to_json()), config

    async def wipe_nats(self) -> None:
        """Kill NATS, delete its store, start it again on the same port and directory."""
        await self.nats.stop()
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(self.nats_dir / "jetstream", ignore_errors=True))
        await self.nats.start()


@asynccontextmanager
async def open_rig(where: Path | None, *, small: bool) -> AsyncIterator[Rig]:
    """Servers in a new directory under `where` (default: the temporary directory), removed at the end. Raises ValueError if the disk is too full."""
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=where))
    root.chmod(0o711)  # PostgreSQL runs as its own user if we are root
    try:
        free = shutil.disk_usage(root).free
        if free < FREE_BYTES[small]:
            raise ValueError(
                f"{root.parent} has {free >> 30} GiB free, {FREE_BYTES[small] >> 30} are wanted; name another place with --directory"
            )
        async with EmbeddedPostgres(root / "postgres") as postgres, EmbeddedNats(root / "nats") as nats:
            await anyio.to_thread.run_sync(upgrade, postgres.url)
            async with open_engine(postgres.url, name="penstock-bench") as engine:
                yield Rig(url=postgres.url, engine=engine, nats=nats, nats_dir=root / "nats")
    finally:
        discard_cluster(root / "postgres")
        shutil.rmtree(root, ignore_errors=True)


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True, kw_only=True)
class Spent:
    """The cost of some rows: wall seconds, our CPU seconds, CPU seconds of the server process behind the connection."""

    rows: int = 0
    wall_s: float = 0.0
    ours_s: float = 0.0
    server_s: float = 0.0

    @contextmanager
    def charged(self, rows: int, pid: int) -> Iterator[None]:
        """Add the cost of the block."""
        server, cpu, wall = cpu_s(pid), time.process_time(), time.perf_counter()
        yield
        self.wall_s += time.perf_counter() - wall
        self.ours_s += time.process_time() - cpu
        self.server_s += cpu_s(pid) - server
        self.rows += rows

    def line(self) -> str:
        """Milliseconds of each kind per row."""
        wall, client, server = (1000 * s / self.rows for s in (self.wall_s, self.ours_s, self.server_s))
        return f"{wall:.3f} ms wall, {client:.3f} CPU-ms here, {server:.3f} in the server"
