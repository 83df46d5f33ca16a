"""The drain orders of a process, as it reads them with its heartbeats: take no new work and, for a gateway, give certain rollout
servers no new calls (pool.draining).

An order interrupts a task that waits for work at once (`taking`). A task with work in progress checks `draining` before its next step.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

SELF: Final = "self"
"""The key of a process itself in its row; no rollout server has this URL."""


async def _nothing(connection: AsyncConnection) -> int:
    return 0


class DrainRequests:
    """The requests to one process. `own` counts its remaining work, `calls` the calls of a rollout server. `servers_changed` is called when
    the set of draining servers changes. `of_servers`: whether it is a gateway."""

    def __init__(self, *, of_servers: bool = False) -> None:
        self.of_servers = of_servers
        self.draining = False
        self.servers: frozenset[str] = frozenset()
        self.own: Callable[[AsyncConnection], Awaitable[int]] = _nothing
        self.calls: Callable[[str], int] = lambda url: 0
        self.servers_changed: Callable[[], None] = lambda: None
        self._takers: set[anyio.CancelScope] = set()
        self._works = anyio.Event()  # set and replaced when an order is taken back

    @property
    def any(self) -> bool:
        """Whether anything drains: a person then waits for reports."""
        return self.draining or bool(self.servers)

    def update(self, drains: bool, servers: Collection[str] = ()) -> None:
        """Apply the orders that the data pool holds now."""
        was_draining, self.draining = self.draining, drains
        if drains and not was_draining:
            for scope in list(self._takers):
                scope.cancel()
        if was_draining and not drains:
            self._works.set()
            self._works = anyio.Event()
        if self.servers != frozenset(servers):
            self.servers = frozenset(servers)
            self.servers_changed()

    @contextmanager
    def taking(self) -> Iterator[anyio.CancelScope]:
        """Use while waiting for work: cancelled at once when this process is to drain."""
        with anyio.CancelScope() as scope:
            if self.draining:
                scope.cancel()
            self._takers.add(scope)
            try:
                yield scope
            finally:
                self._takers.discard(scope)

    async def until_withdrawn(self) -> None:
        """Wait until this process may work."""
        while self.draining:
            await self._works.wait()

    async def remaining_work(self, connection: AsyncConnection) -> Mapping[str, int]:
        """The remaining work per draining item; empty: nothing drains, as far as this process knows."""
        own = {SELF: await self.own(connection)} if self.draining else {}
        return {**own, **{url: self.calls(url) for url in self.servers}}
