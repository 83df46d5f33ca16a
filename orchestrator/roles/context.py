"""The context that all roles of the orchestrator share: the run, its configuration, the data pool, the bus and the wake-up signals."""

from dataclasses import dataclass, field

import anyio
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.roles.reward_threads import RewardThreads
from orchestrator.runtime.liveness import current
from orchestrator.settings.config import Config


class Signal:
    """A wake-up between loops. It is only a hint: every waiter also wakes up after its period."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake all current waiters, or the next one."""
        self._event.set()

    async def wait(self, period_s: float) -> None:
        """Return once set, or after `period_s` seconds."""
        loop = current()
        loop.idle("work")
        with anyio.move_on_after(period_s):
            await self._event.wait()
        self._event = anyio.Event()
        loop.busy("its turn")


@dataclass(frozen=True, slots=True)
class Signals:
    """`work`: there may be something to dispatch. `outbox`: there is something to publish."""

    work: Signal = field(default_factory=Signal)
    outbox: Signal = field(default_factory=Signal)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorContext:
    """The context of one orchestrator: one run."""

    run_id: int
    run: str
    config: Config
    engine: AsyncEngine
    bus: Bus
    signals: Signals = field(default_factory=Signals)
    reward_threads: RewardThreads = field(default_factory=RewardThreads)
    alone: anyio.Lock = field(default_factory=anyio.Lock)
    """Taken by the consumer that handles a message which may end this process (`roles.returned`)."""
