"""The state of every long-lived loop of a process, and its current dependency. The loops report it; the watchdog and heartbeats read it.

    with track_loop("relay") as loop:                    # a name on this process's registry; an end without cancellation is an alarm
        while True:
            loop.busy("page of the outbox")          # progress: it has started an item
            with waiting_for("nats"):                 # deep inside, where no loop is known by name
                ...
            loop.idle("outbox rows")                 # progress: it has no work until something arrives

A loop that works and has made no progress for `no_progress_s` is stuck. A resting loop is never stuck, regardless of what it waits for. Whether it
should have received work is a question for the data pool (`pool.backlog`).

This module judges nothing and keeps no history. Outside `loop_registry` each call costs one read of a context variable and has no effect.
"""

import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio

RETURNED = "it returned"


@dataclass(slots=True, kw_only=True)
class Loop:
    """One loop's own report. Times are `time.monotonic()`. `within`: seconds without progress that are normal, for this item alone."""

    name: str
    item: str = ""
    resting: bool = False
    since: float = field(default_factory=time.monotonic)  # the last progress
    within: float = 0.0
    ended: str = ""  # how it ended without being cancelled
    restarts: int = 0
    restart: Callable[[], None] | None = None  # safe to call in the event loop's thread
    on: str = ""  # its dependency, unless code inside it reports a more specific one
    _waits: dict[str, int] = field(default_factory=dict)  # dependency → how many tasks wait for it

    def busy(self, item: str = "", *, on: str = "", within: float = 0.0) -> None:
        """It has started `item`."""
        self.item, self.on, self.within, self.resting = item, on, within, False
        self.since = time.monotonic()

    def idle(self, waits_for: str) -> None:
        """It has no work until something arrives, which may never happen."""
        self.item, self.within, self.on = "", 0.0, waits_for
        if not self.resting:
            self.since = time.monotonic()
        self.resting = True

    def progressed(self) -> None:
        """It made progress with the same item."""
        self.since = time.monotonic()

    @property
    def waits_for(self) -> str:
        """The current dependency; empty: it computes."""
        for dependency in list(self._waits):
            return dependency
        return self.on

    @contextmanager
    def waiting(self, dependency: str) -> Iterator[None]:
        """The block waits for `dependency`. A successful end of the wait is progress."""
        self._waits[dependency] = self._waits.get(dependency, 0) + 1
        try:
            yield
            self.since = time.monotonic()
        finally:
            self._waits[dependency] -= 1
            if not self._waits[dependency]:
                del self._waits[dependency]

    def stuck_for(self, now: float, no_progress_s: float) -> float:
        """Seconds without progress if they exceed the limit, else 0. A loop that has ended without cancellation is stuck at once."""
        if self.ended:
            return max(now - self.since, 1e-3)
        silent = now - self.since
        return silent if not self.resting and silent > max(no_progress_s, self.within) else 0.0


class LoopRegistry:
    """The loops of one process. Written in its event loop, read by any thread."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._loops: dict[int, Loop] = {}
        self._numbers = itertools.count()

    def loops(self) -> dict[int, Loop]:
        """A snapshot, in the order of their starts. A number is never used twice."""
        return self._loops.copy()

    def put(self, loop: Loop) -> int:
        number = next(self._numbers)
        self._loops[number] = loop
        return number

    def remove(self, number: int) -> None:
        self._loops.pop(number, None)

    def skip(self, seconds: float) -> None:
        """The whole process was paused for `seconds`, which does not count against any loop."""
        for loop in self.loops().values():
            loop.since += seconds


_registry: ContextVar[LoopRegistry | None] = ContextVar("loop_registry", default=None)
_loop: ContextVar[Loop | None] = ContextVar("loop", default=None)


@contextmanager
def loop_registry(process: str) -> Iterator[LoopRegistry]:
    """A registry for every task that is started in the block."""
    registry = LoopRegistry(process)
    token = _registry.set(registry)
    try:
        yield registry
    finally:
        _registry.reset(token)


@contextmanager
def track_loop(name: str, *, forever: bool = True) -> Iterator[Loop]:
    """A loop of this process while the body runs. If it ends by an error, or (`forever`) returns without being cancelled, it stays on the
    registry as ended, even if a caller swallows the error."""
    registry, loop = _registry.get(), Loop(name=name)
    number = registry.put(loop) if registry is not None else -1
    token = _loop.set(loop)
    try:
        yield loop
        if forever:
            loop.ended = RETURNED
    except Exception as error:
        loop.ended = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise
    finally:
        _loop.reset(token)
        loop.since = time.monotonic()
        if registry is not None and not loop.ended:
            registry.remove(number)


@contextmanager
def reporting(name: str) -> Iterator[Loop]:
    """An entry of the registry for the joint work of several tasks, or for retries of a loop that continues with other work. It is updated only
    by explicit calls. It starts at rest."""
    registry, loop = _registry.get(), Loop(name=name, resting=True)
    number = registry.put(loop) if registry is not None else -1
    try:
        yield loop
    finally:
        if registry is not None:
            registry.remove(number)


@contextmanager
def waiting_for(dependency: str) -> Iterator[None]:
    """The current loop, if any, waits for `dependency` in this block."""
    loop = _loop.get()
    if loop is None:
        yield
        return
    with loop.waiting(dependency):
        yield


def current() -> Loop:
    """The current loop; outside any loop, one that is in no registry."""
    return _loop.get() or Loop(name="")


async def pause(seconds: float) -> None:
    """Sleep between two turns of a loop."""
    loop = current()
    loop.idle("time")
    await anyio.sleep(seconds)
    loop.busy("its turn")


async def restartable(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` as a loop that may be cancelled at any point and restarted. The watchdog does so when it is stuck. Propagates the exceptions of
    `work`."""
    restarts = 0
    while True:
        with track_loop(name, forever=False) as loop:
            with anyio.CancelScope() as scope:
                loop.restarts, loop.restart = restarts, scope.cancel
                await work()
            if not scope.cancelled_caught:
                loop.ended = RETURNED
                return
        restarts += 1
