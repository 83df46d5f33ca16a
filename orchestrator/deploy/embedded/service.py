"""A server that serves one directory while a context is open: the common part of NATS and PostgreSQL.

A server that already runs on the directory is adopted, and left running at the end.
"""

import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import anyio
import anyio.to_thread

from orchestrator.deploy.embedded.file_lock import exclusive
from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.spawn import last_lines, reap, spawn


class ServiceHome(Protocol):
    """A directory that is ready to be served."""

    @property
    def url(self) -> str: ...

    @property
    def argv(self) -> tuple[str, ...]: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    def running(self) -> ProcessId | None:
        """Its server, if it runs."""

    def before_start(self) -> str | None:
        """Call before every start. Returns what is unusual about this start. Blocking."""


H = TypeVar("H", bound=ServiceHome)


class EmbeddedService(ABC, Generic[H]):
    """One server on one directory. Not bound to an event loop: it may be left in another loop than it was entered in, by the same thread.

    `called`: the name for people. `endings`: the signals that end it, each with the seconds until the next one follows.
    """

    called: ClassVar[str]
    endings: ClassVar[tuple[tuple[signal.Signals, float], ...]]

    def __init__(self, data_dir: Path, *, log: Path, start_timeout_s: float) -> None:
        self._data_dir = data_dir
        self._log = log
        self._start_timeout_s = start_timeout_s
        self._home: H | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._identity: ProcessId | None = None

    @abstractmethod
    def _prepare(self) -> H:
        """Create the directory if it is new. Blocking. Raises ValueError."""

    @abstractmethod
    async def _ready(self) -> bool:
        """Whether the server serves. Raises ValueError if it answers and is unfit."""

    def _spawn(self, home: H) -> subprocess.Popen[bytes]:
        return spawn(home.argv, log=self._log, env=home.env)

    def _clear(self) -> None:
        """Remove the leftovers of a server that we started and ended."""

    @property
    def home(self) -> H:
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
        """True if the server ran before us and will run after us."""
        return self._child is None

    async def start(self) -> None:
        """Returns when the server serves. Raises ValueError with the last log lines if it does not start."""
        async with exclusive(self._data_dir / "start.lock"):
            self._home = home = await anyio.to_thread.run_sync(self._prepare)
            self._identity = home.running()
            if self._identity is None:
                await anyio.to_thread.run_sync(home.before_start)
                self._child = self._spawn(home)
                self._identity = ProcessId.of(self._child.pid)
            try:
                await self._until_ready(self._identity)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._end_child()
                raise

    async def _until_ready(self, server: ProcessId) -> None:
        with anyio.move_on_after(self._start_timeout_s):
            while server.alive:
                if await self._ready():
                    return
                await anyio.sleep(0.01)
        log_tail = "\n  ".join(last_lines(self._log))
        raise ValueError(f"{self.called} did not start; the end of {self._log}:\n  {log_tail}")

    async def stop(self) -> None:
        """Ends the server, also an adopted one. Does nothing if it is dead."""
        if self._child is not None:
            await self._end_child()
        elif self._identity is not None:
            await self._end(self._identity)

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None and self._identity is not None:
            await self._end(self._identity)
            await reap(child)
            self._clear()

    async def _end(self, server: ProcessId) -> None:
        for number, patience_s in self.endings:
            server.send(number)
            if await server.gone(patience_s):
                return

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._end_child()
