"""The small buffer between an adapter that fetches and the tasks that take. It is filled on demand only.

Nothing is fetched while no task waits, because a buffered message uses up its ack wait and is work that
another runner could do. Both adapters use this object, so both behave the same.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio

from orchestrator.bus.base import Delivery
from orchestrator.runtime.exception_groups import first_error


class Feed:
    """The `Subscription` that takers hold; the adapter's side is `wanted`, `put` and `leftover`."""

    def __init__(self) -> None:
        self._ready: deque[Delivery] = deque()
        self._takers = 0  # tasks inside `take` that found nothing
        self._demand = anyio.Event()
        self._arrival = anyio.Event()

    async def take(self, limit: int) -> list[Delivery]:
        """Wait for at least one delivery, then return those that have arrived, at most ``limit``."""
        assert limit >= 1
        while not self._ready:
            self._takers += 1
            self._demand.set()
            try:
                await self._arrival.wait()
            finally:
                self._takers -= 1
        taken = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        if self._takers:
            self._demand.set()
        return taken

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        return (await self.take(1))[0]

    async def wanted(self) -> None:
        """Wait until a task waits and the buffer is empty."""
        while self._ready or not self._takers:
            self._demand = anyio.Event()
            await self._demand.wait()

    def put(self, delivery: Delivery) -> None:
        """Hand over one delivery."""
        self._ready.append(delivery)
        self._arrival.set()
        self._arrival = anyio.Event()

    def leftover(self) -> list[Delivery]:
        """Take back the deliveries that no task took, at the end."""
        unread = list(self._ready)
        self._ready.clear()
        return unread


@asynccontextmanager
async def in_background(background: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run ``background`` while the body runs, and cancel it at the end.

    An error of either is raised as it is (a plain task group would wrap it): that of the body, else that of ``background``, which cancels the body.
    """
    failed: BaseException | None = None
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(background)
            try:
                yield
            except (anyio.get_cancelled_exc_class(), GeneratorExit):
                raise
            except BaseException as error:  # raised again below; also pytest's skip and fail
                if group.cancel_scope.cancel_called:  # the background failed before it
                    raise
                failed = error
            group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        failed = failed or first_error(errors)
    if failed is not None:
        raise failed
