"""Where the seconds of a piece of work go, by phase. `ops/bench loop` adds them up.

| work | phases | kept in |
|---|---|---|
| a batch | claim, read, anchor, tree, forward, loss (with its metrics), backward, optimizer, save, commit, prune | train_steps.metrics |
| an attempt | session, sandbox (opening and closing), agent, changes (what it left), seal, other | attempts.spent |

Commit and prune are known only once they are over, so a batch's report has those of the batch before.

`counting` opens a count for what is done inside it, in this thread or task; `spending` counts a stretch under a name. A stretch inside
another one is the inner one's alone, so the phases add up to no more than the whole.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Count:
    """Wall seconds by phase; whole once every stretch has been left."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def enter(self, phase: str) -> None:
        self._settle()
        self._open.append(phase)

    def leave(self) -> None:
        self._settle()
        self._open.pop()

    def _settle(self) -> None:
        now = time.perf_counter()
        if self._open:
            phase = self._open[-1]
            self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now


_COUNT: ContextVar[Count | None] = ContextVar("count", default=None)


@contextmanager
def counting() -> Iterator[Count]:
    """A fresh count."""
    count = Count()
    token = _COUNT.set(count)
    try:
        yield count
    finally:
        _COUNT.reset(token)


@contextmanager
def spending(phase: str) -> Iterator[None]:
    """Count what is done inside under `phase`, where somebody counts."""
    count = _COUNT.get()
    if count is None:
        yield
        return
    count.enter(phase)
    try:
        yield
    finally:
        count.leave()
