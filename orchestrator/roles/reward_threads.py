"""Rewards of groups, computed in threads: much text or a slow process signal blocks neither the event loop nor a transaction.

A transaction that concludes a group waits for its rewards for a moment. If they take longer, it is rolled back, and repeated once they are there
(`NotReady`); other messages of its consumer pass it (`consume`). It then reads the group again under its locks, and uses the rewards only if what
they were computed from is unchanged. So a group's end stays one transaction, and nothing is rewarded twice.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from copy import copy
from functools import partial
from threading import Thread
from typing import Final

import anyio

from orchestrator.pool.transact import NotReady
from orchestrator.roles.reward import RewardedGroup
from orchestrator.runtime.liveness import current, waiting_for
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

MAX_AT_ONCE: Final = 4
"""Groups that are rewarded at a time: they share the interpreter with the event loop."""
MOMENT: Final = 1 / 4
"""Of `timeouts.pool_idle_s`: after that silence PostgreSQL would end the transaction."""


class RewardThreads:
    """The rewards that are being computed, or that no transaction has written yet, by group."""

    def __init__(self) -> None:
        self._computations: dict[int, _Computation] = {}
        self._left_s = math.inf

    def within(self, seconds: float) -> "RewardThreads":
        """The same rewards, for one transaction over many groups: it waits for all of them together at most `seconds`."""
        view = copy(self)
        view._left_s = seconds
        return view

    async def rewards(
        self, group_id: int, inputs: object, compute: Callable[[], RewardedGroup]
    ) -> RewardedGroup:
        """The result of `compute`, which depends only on `inputs`. Raises NotReady while it is computed or has to wait for others, TimeoutError
        after `timeouts.rewards_s` times the groups that were rewarded at once, and whatever it raises."""
        found = self._computations.get(group_id)
        if found is None or found.inputs != inputs:
            self._forget_unused()
            if len(self._running()) >= MAX_AT_ONCE:
                raise NotReady(self._room)
            try:
                found = self._computations[group_id] = _Computation(inputs, compute)
                self._share()
            except RuntimeError as error:  # no thread can be started: the group is not at fault
                log.warning("rewards.delayed", group=group_id, error=str(error))
                raise NotReady(partial(anyio.sleep, timeouts().pool_retry_s)) from error
            began = time.monotonic()
            await found.wait(min(self._left_s, timeouts().pool_idle_s * MOMENT))
            self._left_s -= time.monotonic() - began
        found.used = time.monotonic()
        if not found.is_over:
            raise NotReady(found.over)
        return found.result()

    def _running(self) -> list["_Computation"]:
        return [found for found in self._computations.values() if not found.is_over]

    async def _room(self) -> None:
        """Return when another computation may begin."""
        while len(running := self._running()) >= MAX_AT_ONCE:
            with waiting_for_rewards():
                await _first_of(running)

    def _share(self) -> None:
        """Computations share one interpreter: each may take as long as if they came one after the other."""
        running = self._running()
        for found in running:
            found.share(len(running))

    def forget(self, group_id: int) -> None:
        """A transaction has concluded the group."""
        self._computations.pop(group_id, None)

    def _forget_unused(self) -> None:
        """Another orchestrator, or another reason, has concluded these groups."""
        oldest = time.monotonic() - timeouts().rewards_s
        for group_id, found in list(self._computations.items()):
            if found.is_over and max(found.used, found.over_at) < oldest:
                del self._computations[group_id]


async def _first_of(running: Sequence["_Computation"]) -> None:
    """Return when one of them is over, or has more time than it had."""
    async with anyio.create_task_group() as group:

        async def wait(found: _Computation) -> None:
            await found.wait(found.left_s)
            group.cancel_scope.cancel()

        for found in running:
            group.start_soon(wait, found)


@contextmanager
def waiting_for_rewards() -> Iterator[None]:
    """A wait for rewards is bounded, so the loop is not stuck."""
    loop = current()
    before = loop.within
    loop.within = max(before, (MAX_AT_ONCE + 1) * timeouts().rewards_s)
    try:
        with waiting_for("rewards"):
            yield
    finally:
        loop.within = before


class _Computation:
    """One group's rewards. The thread is a daemon: a signal that never returns does not keep the process from its end."""

    def __init__(self, inputs: object, compute: Callable[[], RewardedGroup]) -> None:
        self.inputs = inputs
        self.used = self._began = time.monotonic()
        self._ends = self._began + timeouts().rewards_s
        self._computed_at = math.inf
        self._future: Future[RewardedGroup] = Future()
        self._done = anyio.Event()
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                self._future.set_result(compute())
            except BaseException as error:  # noqa: BLE001  # `result` raises it
                self._future.set_exception(
                    error if isinstance(error, Exception) else RuntimeError(repr(error))
                )
            self._computed_at = time.monotonic()
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(self._done.set)

        Thread(target=copy_context().run, args=(run,), name="rewards", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._future.done() or time.monotonic() >= self._ends

    @property
    def over_at(self) -> float:
        """When it was computed or given up, if it is over."""
        return min(self._computed_at, self._ends)

    @property
    def left_s(self) -> float:
        return self._ends - time.monotonic()

    def share(self, running: int) -> None:
        """So many computations run now, this one included."""
        self._ends = max(self._ends, self._began + running * timeouts().rewards_s)

    async def wait(self, seconds: float) -> None:
        """Return when the rewards are computed, or after `seconds`."""
        with anyio.move_on_after(seconds):
            await self._done.wait()

    async def over(self) -> None:
        """Return when `result` returns or raises."""
        with waiting_for_rewards():
            while not self.is_over:
                await self.wait(self.left_s)

    def result(self) -> RewardedGroup:
        if not self._future.done():
            raise TimeoutError(f"they take longer than {self._ends - self._began:g} s (timeouts.rewards_s)")
        return self._future.result()
