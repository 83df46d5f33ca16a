"""A sandbox whose programs the clocks of an attempt see: what a white box works in, and what a black box runs in."""

from collections.abc import Mapping, Sequence

import anyio

from orchestrator.flow.clocks import Clocks
from sandboxes.base import (
    ArtifactLimits,
    Artifacts,
    ExecResult,
    File,
    KilledBy,
    Limits,
    Process,
    Sandbox,
)


class WatchedProcess:
    """Implements `sandboxes.base.Process`; the clocks hear of its end from whoever waits for it."""

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


class WatchedBox:
    """Implements `sandboxes.base.Sandbox`."""

    def __init__(self, box: Sandbox, clocks: Clocks) -> None:
        self._box = box
        self._clocks = clocks

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def limits(self) -> Limits:
        return self._box.limits

    def path(self, inside: str) -> str:
        return self._box.path(inside)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        process = await self.start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)
        try:
            return await process.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await process.kill()
            raise

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        process = await self._box.start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)
        return WatchedProcess(process, self._clocks)

    async def put(self, files: Mapping[str, File]) -> None:
        await self._box.put(files)

    async def get(self, path: str, *, max_bytes: int = 8 << 20) -> bytes:
        return await self._box.get(path, max_bytes=max_bytes)

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        return await self._box.changed(limits)

    async def close(self) -> None:
        await self._box.close()
