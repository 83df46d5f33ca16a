"""The embedded PostgreSQL as one async context manager.

    async with EmbeddedPostgres(run.postgres) as server:
        await asyncpg.connect(server.url)

The server that runs already on the directory is adopted, and left running at the end. A supervised server is started from
`postgres_spec` instead.
"""

import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
import asyncpg

from orchestrator.embedded.exclusive import exclusive
from orchestrator.embedded.identity import ProcessId
from orchestrator.embedded.postgres_cluster import PostgresCluster, prepare_cluster
from orchestrator.embedded.spawn import last_lines, reap, spawn

# A server that starts, ends or crashes, or has no disk, memory or connection left.
_PASSING = (
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.PostgresSystemError,
)


class EmbeddedPostgres:
    """Serves one data directory while the context is open. Not bound to an event loop: it may be left in another than it
    was entered in, by the same thread."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        log: Path | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        self._data_dir = data_dir
        self._port = port
        self._durable = durable
        self._settings = settings
        self._log = log if log is not None else data_dir / "postgres.log"
        self._start_timeout_s = start_timeout_s
        self._cluster: PostgresCluster | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._identity: ProcessId | None = None

    @property
    def cluster(self) -> PostgresCluster:
        assert self._cluster is not None, "the server has not been started"
        return self._cluster

    @property
    def url(self) -> str:
        """`postgresql://penstock:…@127.0.0.1:<port>/penstock?sslmode=disable`"""
        return self.cluster.url

    @property
    def socket_url(self) -> str:
        return self.cluster.socket_url

    @property
    def pid(self) -> int:
        assert self._identity is not None, "the server has not been started"
        return self._identity.pid

    @property
    def adopted(self) -> bool:
        """True when the server ran before us and will run after us."""
        return self._child is None

    async def start(self) -> None:
        """Returns when the server answers a query; 0.2 s, 0.8 s when the data directory is new. Raises ValueError with the last log
        lines when it does not start."""
        async with exclusive(self._data_dir / "start.lock"):
            self._cluster = await anyio.to_thread.run_sync(
                lambda: prepare_cluster(
                    self._data_dir, port=self._port, durable=self._durable, settings=self._settings
                )
            )
            self._identity = self._cluster.running()
            if self._identity is None:
                await anyio.to_thread.run_sync(self._cluster.before_start)
                cluster = self._cluster
                self._child = spawn(
                    cluster.argv, log=self._log, env=cluster.env, cwd=Path("/"), user=cluster.user
                )
                self._identity = ProcessId.of(self._child.pid)
            try:
                await self._until_ready()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._end_child()
                raise

    async def _until_ready(self) -> None:
        assert self._identity is not None
        with anyio.move_on_after(self._start_timeout_s):
            while self._identity.alive:
                if await accepts_queries(self.cluster):
                    return
                await anyio.sleep(0.01)
        said = "\n  ".join(last_lines(self._log))
        raise ValueError(f"PostgreSQL did not start; the end of {self._log}:\n  {said}")

    async def stop(self) -> None:
        """Fast shutdown (open transactions are rolled back), also of an adopted server. Does nothing when it is dead."""
        if self._child is not None:
            await self._end_child()
        elif self._identity is not None:
            await end_server(self._identity)

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None and self._identity is not None:
            await end_server(self._identity)
            await reap(child)
            shutil.rmtree(self.cluster.sockets, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._end_child()


async def end_server(server: ProcessId, *, grace_s: float = 30.0) -> None:
    """Fast shutdown of a PostgreSQL server; immediate when that takes longer than `grace_s` seconds, then SIGKILL."""
    for number, patience_s in ((signal.SIGINT, grace_s), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
        server.send(number)
        if await server.gone(patience_s):
            return


async def accepts_queries(cluster: PostgresCluster) -> bool:
    """The ready check: True when the server answers over its Unix socket, which nobody but that server can own."""
    try:
        connection = await asyncpg.connect(cluster.socket_url, timeout=5)
    except (OSError, TimeoutError, *_PASSING):
        return False
    try:
        return bool(await connection.fetchval("select true"))
    except (OSError, *_PASSING):
        return False
    finally:
        connection.terminate()
