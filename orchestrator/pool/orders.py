"""What a process has been ordered by people, as it hears it with its heartbeats: to take no new work, and, a gateway, to give some rollout
servers no new calls (pool.draining).

It is heard in the event loop at once by whoever waits for work (`taking`); whoever has begun something looks at `drains` before the next step.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

SELF: Final = "self"
"""What a process calls itself in its row; no rollout server's URL is this."""


async def _nothing(connection: AsyncConnection) -> int:
    return 0


class Orders:
    """The orders of one process. `own` counts what it still holds, `calls` the calls of a rollout server; `servers_changed` is called when
    other servers are to be drained than before. `of_servers`: whether it is a gateway."""

    def __init__(self, *, of_servers: bool = False) -> None:
        self.of_servers = of_servers
        self.drains = False
        self.servers: frozenset[str] = frozenset()
        self.own: Callable[[AsyncConnection], Awaitable[int]] = _nothing
        self.calls: Callable[[str], int] = lambda url: 0
        self.servers_changed: Callable[[], None] = lambda: None
        self._takers: set[anyio.CancelScope] = set()
        self._works = anyio.Event()  # set, and replaced, when an order is taken back

    @property
    def any(self) -> bool:
        """Whether anything drains: then somebody waits to hear of it."""
        return self.drains or bool(self.servers)

    def hear(self, drains: bool, servers: Collection[str] = ()) -> None:
        """What the data pool says now."""
        before, self.drains = self.drains, drains
        if drains and not before:
            for scope in list(self._takers):
                scope.cancel()
        if before and not drains:
            self._works.set()
            self._works = anyio.Event()
        if self.servers != frozenset(servers):
            self.servers = frozenset(servers)
            self.servers_changed()

    @contextmanager
    def taking(self) -> Iterator[anyio.CancelScope]:
        """While somebody waits for work that it has not got yet: given up at once when this process is to drain."""
        with anyio.CancelScope() as scope:
            if self.drains:
                scope.cancel()
            self._takers.add(scope)
            try:
                yield scope
            finally:
                self._takers.discard(scope)

    async def taken_back(self) -> None:
        """Wait until this process may work."""
        while self.drains:
            await self._works.wait()

    async def holds(self, connection: AsyncConnection) -> Mapping[str, int]:
        """How much of what drains is still there; empty: nothing drains, as far as this process has heard."""
        own = {SELF: await self.own(connection)} if self.drains else {}
        return {**own, **{url: self.calls(url) for url in self.servers}}
