"""The suite as another user: a provider all of whose programs run as a named one."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from sandboxes.base import Provider, Sandbox, SandboxSpec


class AsUser:
    """`provider`, whose programs all run as `user`."""

    def __init__(self, provider: Provider, user: str) -> None:
        self._provider, self.user = provider, user
        self.inner: Provider = getattr(provider, "inner", provider)
        self.image: str = getattr(provider, "image", "")
        self.name, self.isolated, self.containers = provider.name, provider.isolated, provider.containers
        self.own_system: bool = getattr(provider, "own_system", False)

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._provider.open(replace(spec, user=self.user))

    async def problems(self) -> tuple[str, ...]:
        return await self._provider.problems()
