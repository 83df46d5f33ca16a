"""A client that submits work next to a test, and stops between two submissions."""

import math
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from tests.waiting import eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeder:
    """`feed` submits what is missing, and returns when everything that it wrote into the ledger is answered. A cancelled feeder would leave names in
    the ledger that the bus never got, and they would count as lost. It is never cancelled: it is stopped by an event, and awaited.
    """

    feed: Callable[[], Awaitable[None]]
    every_s: float
    _stopping: anyio.Event = field(default_factory=anyio.Event)
    _stopped: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> None:
        """Feed until it must stop."""

        async def fed() -> bool:
            if not self._stopping.is_set():
                await self.feed()
            return self._stopping.is_set()

        try:
            await eventually(fed, within_s=math.inf, every_s=self.every_s)
        except Exception:
            # It ends all tests of its session, which then report that they were cancelled and not why.
            traceback.print_exc()
            raise
        self._stopped.set()

    async def stop(self) -> None:
        """Returns when the last submission is answered; nothing is submitted after that."""
        self._stopping.set()
        await self._stopped.wait()
