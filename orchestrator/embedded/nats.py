"""The embedded NATS server as one async context manager, and the checks that any NATS server must pass.

    async with EmbeddedNats(run.nats) as server:
        await nats.connect(server.url)

The server that runs already on the directory is adopted, and left running at the end. A supervised server is started from
`nats_spec` instead.
"""

import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from nats.aio.client import Client
from nats.errors import Error as NatsError

from orchestrator.embedded.exclusive import exclusive
from orchestrator.embedded.identity import ProcessId
from orchestrator.embedded.nats_server import (
    NEEDED_PAYLOAD,
    NatsHome,
    parse_version,
    prepare_nats,
    refuse_old,
)
from orchestrator.embedded.spawn import last_lines, reap, spawn

DEFAULT_PORT = 4222


class EmbeddedNats:
    """Serves one JetStream directory while the context is open. Not bound to an event loop."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        log: Path | None = None,
        start_timeout_s: float = 20.0,
    ) -> None:
        self._data_dir = data_dir
        self._port = port
        self._log = log if log is not None else data_dir / "nats.log"
        self._start_timeout_s = start_timeout_s
        self._home: NatsHome | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._identity: ProcessId | None = None

    @property
    def home(self) -> NatsHome:
        assert self._home is not None, "the server has not been started"
        return self._home

    @property
    def url(self) -> str:
        return self.home.url

    @property
    def pid(self) -> int:
        assert self._identity is not None, "the server has not been started"
        return self._identity.pid

    @property
    def adopted(self) -> bool:
        """True when the server ran before us and will run after us."""
        return self._child is None

    async def start(self) -> None:
        """Returns when a client was served; 0.05 s. Raises ValueError with the last log lines when the server does not start."""
        async with exclusive(self._data_dir / "start.lock"):
            self._home = home = await anyio.to_thread.run_sync(
                lambda: prepare_nats(self._data_dir, port=self._port)
            )
            self._identity = home.running()
            if self._identity is None:
                home.before_start()
                self._child = spawn(home.argv, log=self._log, env=home.env)
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
                if await serves(self.url):
                    return
                await anyio.sleep(0.01)
        said = "\n  ".join(last_lines(self._log))
        raise ValueError(f"the NATS server did not start; the end of {self._log}:\n  {said}")

    async def stop(self) -> None:
        """Ends the server, also an adopted one. Does nothing when it is dead."""
        if self._child is not None:
            await self._end_child()
        elif self._identity is not None:
            await _end(self._identity)

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None and self._identity is not None:
            await _end(self._identity)
            await reap(child)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._end_child()


async def _end(server: ProcessId) -> None:
    for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        server.send(number)
        if await server.gone(patience_s):
            return


async def serves(url: str) -> bool:
    """The ready check: True when a server answers and passes `check_server`. Raises ValueError when it answers and does not."""
    shown = urlsplit(url)
    try:
        # A client's first failed attempt costs it two seconds, a bare connection nothing.
        probe = await anyio.connect_tcp(shown.hostname or "", shown.port or DEFAULT_PORT)
        await probe.aclose()
        await check_server(url, connect_timeout_s=2)
    except (OSError, TimeoutError, NatsError):
        return False
    return True


async def check_server(url: str, *, connect_timeout_s: int = 5) -> tuple[int, ...]:
    """Connects once and returns the server's version, e.g. (2, 15, 0).

    Raises ValueError when the server is older than 2.10, accepts less than 1 MB per message, or has no JetStream; OSError, TimeoutError or
    nats.errors.Error when it cannot be reached.
    """
    client = Client()
    try:
        await client.connect(url, allow_reconnect=False, connect_timeout=connect_timeout_s, error_cb=_quiet)
        shown = urlsplit(url)
        where = f"{shown.hostname}:{shown.port or DEFAULT_PORT}"
        version = parse_version(str(client.connected_server_version))
        refuse_old(version, f"at {where}", "upgrade it")
        if client.max_payload < NEEDED_PAYLOAD:
            raise ValueError(
                f"the NATS server at {where} accepts {client.max_payload} bytes per message, but {NEEDED_PAYLOAD} are needed; "
                "set max_payload: 8MB in its configuration"
            )
        try:
            await client.jetstream().account_info()
        except NatsError as error:
            raise ValueError(
                f"the NATS server at {where} has no JetStream; start it with --jetstream"
            ) from error
        return version
    finally:
        await client.close()


async def _quiet(_: Exception) -> None:
    """A failed attempt is an answer of the check, not an event to print."""
