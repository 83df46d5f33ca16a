"""The courier: a journal's messages on their way to Postgres.

| produces | waits for | unblocked by |
|---|---|---|
| a durable entry per `send` | the journal's fsync | the disk |
| a publish per entry, again on reconnect, on a new stream and `timeouts.courier_resend_s` after it was found missing | the bus | NATS |
| a settled entry | `confirm`: the data pool has the effect, or has refused it | the orchestrator's ingest |
| nothing while the data pool is unreachable: messages in the stream are not sent again, refused messages are kept | Postgres | its return |

A message that the bus can never accept is not retried without end: `unsendable` keeps it elsewhere or returns a replacement.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

import anyio

from orchestrator.bus.base import Bus, BusError, Outgoing, TooLarge
from orchestrator.bus.journal import Journal, JournalEntry, JournalFull
from orchestrator.runtime.liveness import (
    Loop,
    current,
    pause,
    reporting,
    restartable,
)
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

PAGE = 256  # entries published or confirmed at a time
REFUSED_AGAIN_S = 0.5

Confirm = Callable[[Sequence[str]], Awaitable[Collection[str]]]
"""Called with message ids. Returns those of the messages that need not be kept any longer."""
KeepTooLarge = Callable[[JournalEntry, str], Awaitable[Outgoing | None]]
"""Called with an entry that is too large for the bus, and the reason. Returns a replacement, or None once the entry is kept elsewhere."""


class Courier:
    """Sends messages that must not be lost. `run` must be running for anything to arrive.

    Messages sent within `linger_s` seconds are published together. `confirm` may raise exceptions like ServiceError; `run` lets them through, and
    the caller wraps it with its retry rule.
    """

    def __init__(
        self,
        journal: Journal,
        bus: Bus,
        *,
        confirm: Confirm,
        unsendable: KeepTooLarge | None = None,
        confirm_every_s: float = 0.5,
        linger_s: float = 0.03,
    ) -> None:
        self._journal = journal
        self._bus = bus
        self._confirm = confirm
        self._unsendable = unsendable
        self._confirm_every_s = confirm_every_s
        self._linger_s = linger_s
        self._settled = False  # whether anything was settled since the last report
        self._sent: set[int] = set()  # entries that the stream has accepted
        # Sent entries that the data pool does not have → the time when that was first known.
        self._missing: dict[int, float] = {}
        self._wake = anyio.Event()
        bus.on_reconnect(self._resend_all)
        bus.on_stream_new(self._resend_stream)

    async def send(self, message: Outgoing) -> None:
        """Return once `message` is durable; it is published soon after, as often as needed. Raises JournalFull."""
        await self._journal.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Publish and confirm until cancelled. Then publish the last unsent messages, if the bus is reachable."""
        with reporting("journal") as line:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(restartable, "courier.publish", self._publish_loop)
                    tasks.start_soon(restartable, "courier.confirm", partial(self._confirm_loop, line))
            finally:
                if page := self._unsent()[:PAGE]:
                    with anyio.move_on_after(timeouts().republish_window_s, shield=True):
                        await self._publish(page)

    async def room(self) -> None:
        """Wait while the journal is full."""
        if self._journal.full:
            log.warning("courier.full", bytes=self._journal.held_bytes, consequence="new work waits")
            await self._journal.room()

    async def drained(self) -> None:
        """Wait until nothing is pending."""
        while self._journal.pending():
            await anyio.sleep(self._confirm_every_s / 5)

    async def _resend_all(self) -> None:
        self._sent.clear()
        self._missing.clear()
        self._wake.set()

    async def _resend_stream(self, stream: str) -> None:
        await self._resend_all()

    async def _publish_loop(self) -> None:
        while True:
            self._wake = anyio.Event()
            unsent = self._unsent()
            page = unsent[:PAGE]
            if page and not await self._publish(page):
                # The stream is full: back-pressure until the orchestrator has caught up.
                await anyio.sleep(REFUSED_AGAIN_S)
            elif len(unsent) <= PAGE:
                current().idle("messages")
                with anyio.move_on_after(1.0):
                    await self._wake.wait()
                current().busy("its turn")
                # No task waits for a publish. Messages that are sent together cost one transaction in the data pool instead of one
                # each, and their sender's own work (a reply) is not delayed.
                await anyio.sleep(self._linger_s)

    def _unsent(self) -> list[JournalEntry]:
        return [entry for entry in self._journal.pending() if entry.n not in self._sent]

    async def _publish(self, page: Sequence[JournalEntry]) -> bool:
        """Return whether the stream accepted all of them."""
        results = await self._bus.publish_many([entry.message for entry in page])
        refused = 0
        for entry, result in zip(page, results, strict=True):
            if isinstance(result, TooLarge) and self._unsendable is not None:
                log.error("courier.unsendable", msg_id=entry.message.msg_id, error=str(result))
                try:
                    await self._replace(entry, await self._unsendable(entry, str(result)))
                except JournalFull as journal_full:  # the entry stays and is retried
                    refused += 1
                    error = str(journal_full)
            elif isinstance(result, BusError):
                refused += 1
                error = str(result)
            elif self._journal.holds(entry.n):
                self._sent.add(entry.n)
        if refused:
            log.warning("courier.refused", entries=refused, error=error)
        return not refused

    async def _replace(self, entry: JournalEntry, instead: Outgoing | None) -> None:
        if instead is not None:
            await self._journal.append(instead)
            self._wake.set()
        await self._journal.settle([entry.n])

    def _tell(self, line: Loop) -> None:
        """Report the oldest message while nothing is settled."""
        oldest = next(iter(self._journal.pending()), None)
        if oldest is None:
            line.idle("messages")
            return
        if line.resting or self._settled:
            line.busy()
        self._settled = False
        line.item = oldest.message.msg_id
        line.on = "the orchestrator's ingest" if oldest.n in self._sent else "nats"

    async def _confirm_loop(self, line: Loop) -> None:
        while True:
            self._tell(line)
            await pause(self._confirm_every_s)
            sent = [entry for entry in self._journal.pending() if entry.n in self._sent]
            for start in range(0, len(sent), PAGE):
                await self._confirm_page(sent[start : start + PAGE])

    async def _confirm_page(self, page: Sequence[JournalEntry]) -> None:
        ids = set(await self._confirm([entry.message.msg_id for entry in page]))
        settled = {entry.n for entry in page if entry.message.msg_id in ids}
        self._settled = self._settled or bool(settled)
        await self._journal.settle(settled)
        now = anyio.current_time()
        for entry in page:
            if entry.n in settled:
                self._sent.discard(entry.n)
                self._missing.pop(entry.n, None)
            # Counted from an answer of the data pool: while it was unreachable, no process could have ingested the entry.
            elif (
                entry.n in self._sent
                and now - self._missing.setdefault(entry.n, now) >= timeouts().courier_resend_s
            ):
                self._sent.discard(entry.n)
                del self._missing[entry.n]
                self._wake.set()
