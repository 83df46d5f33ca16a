"""The suite on an image: a provider each of whose sandboxes starts from one."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from sandboxes.base import Provider, Sandbox, SandboxSpec


class OnImage:
    """`provider`, whose sandboxes all start from `image`. Its WORKDIR must be empty, or absent from it."""

    own_system = True

    def __init__(self, provider: Provider, image: str) -> None:
        self.inner, self.image = provider, image
        self.name, self.isolated, self.containers = provider.name, provider.isolated, provider.containers

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self.inner.open(replace(spec, image=self.image))

    async def problems(self) -> tuple[str, ...]:
        return await self.inner.problems()
