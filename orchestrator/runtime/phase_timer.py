"""The seconds of a piece of work, by phase. `ops/bench loop` adds them up.

| work | phases | kept in |
|---|---|---|
| a batch | claim, read, anchor, tree, forward, loss (with its metrics), backward, optimizer, save, commit, prune | train_steps.metrics |
| an attempt | session, sandbox (opening and closing), agent, changes (what it left), seal, other | attempts.spent |

Commit and prune are known only after their end, so a batch's report has those of the previous batch.

`collect` opens a count for the block, in this thread or task. `phase` counts a block under a name. A block inside
another one counts only for the inner name, so the phases add up to no more than the total.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Count:
    """Wall seconds by phase; complete once every `phase` block has been left."""

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
def collect() -> Iterator[Count]:
    """A fresh count."""
    count = Count()
    token = _COUNT.set(count)
    try:
        yield count
    finally:
        _COUNT.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the block under `name`, if a count is open."""
    count = _COUNT.get()
    if count is None:
        yield
        return
    count.enter(name)
    try:
        yield
    finally:
        count.leave()
