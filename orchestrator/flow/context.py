"""What every role of the orchestrator shares: the run, its configuration, the data pool, the bus and the wake-up signals."""

from dataclasses import dataclass, field

import anyio
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.config import Config
from orchestrator.progress import current


class Signal:
    """A wake-up between loops. Only ever a hint: every waiter also looks by itself after its period."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake whoever waits now, and the next one that will."""
        self._event.set()

    async def wait(self, period_s: float) -> None:
        """Return once set, or after `period_s` seconds."""
        loop = current()
        loop.rests("work")
        with anyio.move_on_after(period_s):
            await self._event.wait()
        self._event = anyio.Event()
        loop.works("its turn")


@dataclass(frozen=True, slots=True)
class Signals:
    """`work`: something to dispatch may be there. `outbox`: something to publish."""

    work: Signal = field(default_factory=Signal)
    outbox: Signal = field(default_factory=Signal)


@dataclass(frozen=True, slots=True)
class Flow:
    """The context of one orchestrator: one run."""

    run_id: int
    run: str
    config: Config
    engine: AsyncEngine
    bus: Bus
    signals: Signals = field(default_factory=Signals)
