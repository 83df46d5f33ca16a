"""A sandbox that reports its programs to the clocks of an attempt. White boxes work in it, black boxes run in it."""

from collections.abc import Mapping, Sequence

from orchestrator.runner.clocks import Clocks
from orchestrator.runner.delegated_sandbox import DelegatedSandbox
from sandboxes.base import ExecResult, KilledBy, Process, Sandbox


class WatchedProcess:
    """Implements `sandboxes.base.Process`; `wait` and `kill` report the program's end to the clocks."""

    def __init__(self, process: Process, clocks: Clocks) -> None:
        self._process = process
        self._clocks = clocks
        clocks.started(process)

    @property
    def last_output(self) -> float:
        return self._process.last_output

    def cpu_s(self) -> float:
        return self._process.cpu_s()

    async def read(self) -> tuple[bytes, bytes]:
        return await self._process.read()

    async def wait(self) -> ExecResult:
        try:
            return await self._process.wait()
        finally:
            self._clocks.ended(self._process)

    async def kill(self, reason: KilledBy = KilledBy.CALLER) -> ExecResult:
        try:
            return await self._process.kill(reason)
        finally:
            self._clocks.ended(self._process)


class ClockedSandbox(DelegatedSandbox):
    """Implements `sandboxes.base.Sandbox`."""

    def __init__(self, sandbox: Sandbox, clocks: Clocks) -> None:
        super().__init__(sandbox)
        self._clocks = clocks

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        process = await super().start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)
        return WatchedProcess(process, self._clocks)
