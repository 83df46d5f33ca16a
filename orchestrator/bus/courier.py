"""The courier: a journal's messages on their way to Postgres.

| produces | waits for | unblocked by |
|---|---|---|
| a durable entry per `send` | the journal's fsync | the disk |
| a publish per entry, again on reconnect, on a new stream and after `resend_s` | the bus | NATS |
| a settled entry | `confirm`: the data pool has the effect, or has refused it | the orchestrator's ingest |
"""

import math
from collections.abc import Awaitable, Callable, Collection, Sequence

import anyio

from orchestrator.bus.base import Bus, BusError, Outgoing
from orchestrator.bus.journal import Entry, Journal
from orchestrator.log import get

log = get(__name__)

Confirm = Callable[[Sequence[Entry]], Awaitable[Collection[int]]]


class Courier:
    """Sends messages that must not be lost. `run` must be running for anything to arrive.

    `confirm(entries)` returns the numbers of the entries that need not be kept any longer; it may raise ServiceError-like
    exceptions of its own, which `run` lets through: the caller wraps it with its retry rule.
    """

    def __init__(
        self,
        journal: Journal,
        bus: Bus,
        confirm: Confirm,
        *,
        confirm_every_s: float = 0.5,
        resend_s: float = 30.0,
    ) -> None:
        self._journal = journal
        self._bus = bus
        self._confirm = confirm
        self._confirm_every_s = confirm_every_s
        self._resend_s = resend_s
        self._sent: dict[int, float] = {}  # entry → time of its last publish
        self._wake = anyio.Event()
        bus.on_reconnect(self._resend_all)
        bus.on_stream_new(self._resend_stream)

    async def send(self, message: Outgoing) -> None:
        """Return once `message` is durable; it is published soon after, as often as needed. Raises JournalFull."""
        await self._journal.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Publish and confirm until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._publish_loop)
            tasks.start_soon(self._confirm_loop)

    async def drained(self) -> None:
        """Wait until nothing is pending."""
        while self._journal.pending():
            await anyio.sleep(self._confirm_every_s / 5)

    async def _resend_all(self) -> None:
        self._sent.clear()
        self._wake.set()

    async def _resend_stream(self, stream: str) -> None:
        await self._resend_all()

    async def _publish_loop(self) -> None:
        while True:
            self._wake = anyio.Event()
            now = anyio.current_time()
            due = [
                e for e in self._journal.pending() if now - self._sent.get(e.n, -math.inf) >= self._resend_s
            ]
            if due:
                results = await self._bus.publish_many([entry.message for entry in due])
                full = False
                for entry, result in zip(due, results, strict=True):
                    if isinstance(result, BusError):
                        full = True
                        log.warning("courier.refused", msg_id=entry.message.msg_id, error=str(result))
                    else:
                        self._sent[entry.n] = anyio.current_time()
                if full:
                    await anyio.sleep(
                        0.5
                    )  # the stream is full: back-pressure until the orchestrator has caught up
                    continue
            with anyio.move_on_after(min(self._resend_s, 1.0)):
                await self._wake.wait()

    async def _confirm_loop(self) -> None:
        while True:
            await anyio.sleep(self._confirm_every_s)
            candidates = [entry for entry in self._journal.pending() if entry.n in self._sent]
            if not candidates:
                continue
            settled = await self._confirm(candidates)
            await self._journal.settle(settled)
            for n in settled:
                self._sent.pop(n, None)
