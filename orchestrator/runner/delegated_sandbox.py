"""A sandbox that passes every call on to another one, for those that change some of them."""

from collections.abc import Mapping, Sequence

from sandboxes.base import AnyFile, ArtifactLimits, Artifacts, ExecResult, Limits, Process, Sandbox
from sandboxes.execution import to_its_end
from sandboxes.system import system_of


class DelegatedSandbox:
    """Implements `sandboxes.base.Sandbox`. `exec` goes through `start`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        return self._sandbox.id

    @property
    def system(self) -> str | None:
        return system_of(self._sandbox)

    @property
    def limits(self) -> Limits:
        return self._sandbox.limits

    def path(self, inside: str) -> str:
        return self._sandbox.path(inside)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        return await to_its_end(await self.start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin))

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
    ) -> Process:
        return await self._sandbox.start(argv, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin)

    async def put(
        self,
        files: Mapping[str, AnyFile],
        *,
        links: Mapping[str, str] | None = None,
        modes: Mapping[str, int] | None = None,
    ) -> None:
        await self._sandbox.put(files, links=links, modes=modes)

    async def get(self, path: str, *, max_bytes: int = 8 << 20) -> bytes:
        return await self._sandbox.get(path, max_bytes=max_bytes)

    async def changed(self, limits: ArtifactLimits | None = None) -> Artifacts:
        return await self._sandbox.changed(limits)

    async def close(self) -> None:
        await self._sandbox.close()
