"""What every long-lived loop of a process is doing, and for whom it waits: said by the loops, read by the watchdog and by heartbeats.

    with looping("relay") as loop:                    # a name on this process's board; its end without being cancelled is an alarm
        while True:
            loop.works("page of the outbox")          # progress: it has begun something
            with waiting_for("nats"):                 # deep inside, where no loop is known by name
                ...
            loop.rests("outbox rows")                 # progress: it has nothing to do until something comes

A loop that works and has made no progress for `no_progress_s` is stuck. One that rests never is, whatever it waits for: whether there is work
that it should have got is a question for the data pool (`pool.stages`).

What it is not: it judges nothing and remembers no history. Outside `boarding` all of it costs a look at a context variable and does nothing.
"""

import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio

RETURNED = "it returned"


@dataclass(slots=True)
class Loop:
    """One loop's own word. Times are `time.monotonic()`. `within`: so many seconds without progress are in order, for this item alone."""

    name: str
    item: str = ""
    resting: bool = False
    since: float = field(default_factory=time.monotonic)  # the last progress
    within: float = 0.0
    ended: str = ""  # how it ended, though nobody asked it to
    restarts: int = 0
    restart: Callable[[], None] | None = None  # safe to call in the event loop's thread
    on: str = ""  # what it waits for as long as nothing inside it says more
    _waits: dict[str, int] = field(default_factory=dict)  # dependency → how many tasks wait for it

    def works(self, item: str = "", *, on: str = "", within: float = 0.0) -> None:
        """It has begun `item`."""
        self.item, self.on, self.within, self.resting = item, on, within, False
        self.since = time.monotonic()

    def rests(self, waits_for: str) -> None:
        """It has nothing to do until something comes that need not come."""
        self.item, self.within, self.on = "", 0.0, waits_for
        if not self.resting:
            self.since = time.monotonic()
        self.resting = True

    def moved(self) -> None:
        """It goes on with the same item."""
        self.since = time.monotonic()

    @property
    def waits_for(self) -> str:
        """The dependency; empty: it computes."""
        for dependency in list(self._waits):
            return dependency
        return self.on

    @contextmanager
    def waiting(self, dependency: str) -> Iterator[None]:
        """While it waits for `dependency`; having got what it waited for is progress."""
        self._waits[dependency] = self._waits.get(dependency, 0) + 1
        try:
            yield
            self.since = time.monotonic()
        finally:
            self._waits[dependency] -= 1
            if not self._waits[dependency]:
                del self._waits[dependency]

    def stuck_for(self, now: float, no_progress_s: float) -> float:
        """Seconds without progress if that is too long, else 0. One that has ended by itself is stuck at once."""
        if self.ended:
            return max(now - self.since, 1e-3)
        silent = now - self.since
        return silent if not self.resting and silent > max(no_progress_s, self.within) else 0.0


class Board:
    """The loops of one process. Written in its event loop, read by any thread."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._loops: dict[int, Loop] = {}
        self._numbers = itertools.count()

    def loops(self) -> dict[int, Loop]:
        """A snapshot, in the order in which they began; a number is never used twice."""
        return self._loops.copy()

    def put(self, loop: Loop) -> int:
        number = next(self._numbers)
        self._loops[number] = loop
        return number

    def remove(self, number: int) -> None:
        self._loops.pop(number, None)

    def skip(self, seconds: float) -> None:
        """The whole process stood still for so long: that is no loop's fault."""
        for loop in self.loops().values():
            loop.since += seconds


_board: ContextVar[Board | None] = ContextVar("board", default=None)
_loop: ContextVar[Loop | None] = ContextVar("loop", default=None)


@contextmanager
def boarding(process: str) -> Iterator[Board]:
    """A board for every task that is started inside."""
    made = Board(process)
    token = _board.set(made)
    try:
        yield made
    finally:
        _board.reset(token)


@contextmanager
def looping(name: str, *, forever: bool = True) -> Iterator[Loop]:
    """A loop of this process while the body runs. If it ends by an error, or (`forever`) at all without being cancelled, it stays on the
    board as ended: whoever swallows that error does not silence it."""
    seen, loop = _board.get(), Loop(name)
    number = seen.put(loop) if seen is not None else -1
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
        if seen is not None and not loop.ended:
            seen.remove(number)


@contextmanager
def reporting(name: str) -> Iterator[Loop]:
    """A line on the board for what several tasks do together, or what a loop tries in vain while it goes on with other things: told by hand
    only. It begins at rest."""
    seen, loop = _board.get(), Loop(name, resting=True)
    number = seen.put(loop) if seen is not None else -1
    try:
        yield loop
    finally:
        if seen is not None:
            seen.remove(number)


@contextmanager
def waiting_for(dependency: str) -> Iterator[None]:
    """Whichever loop this is done for waits for `dependency` meanwhile."""
    loop = _loop.get()
    if loop is None:
        yield
        return
    with loop.waiting(dependency):
        yield


def board() -> Board | None:
    """This process's board."""
    return _board.get()


def current() -> Loop:
    """The loop that this is done for; one that nobody sees where there is none."""
    return _loop.get() or Loop("")


async def pause(seconds: float) -> None:
    """Sleep between two turns of a loop."""
    loop = current()
    loop.rests("time")
    await anyio.sleep(seconds)
    loop.works("its turn")


async def restartable(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` as a loop that may be cancelled at any point and begun anew, which the watchdog does when it is stuck. Raises what
    `work` raises."""
    restarts = 0
    while True:
        with looping(name, forever=False) as loop:
            with anyio.CancelScope() as scope:
                loop.restarts, loop.restart = restarts, scope.cancel
                await work()
            if not scope.cancelled_caught:
                loop.ended = RETURNED
                return
        restarts += 1
