"""While a service is away its senders' spool is bounded, in memory and on the disk: further producers wait, and nothing is lost."""

import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from orchestrator.bus import subjects
from orchestrator.bus.base import BusError, Outgoing
from orchestrator.bus.courier import Courier
from orchestrator.bus.journal import Journal
from orchestrator.settings.timeouts import Timeouts, use
from tests.memory_bus import MemoryBus
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

STEP = 64 << 10  # bytes of one recorded step
MAKERS = 8  # sessions that record one step after another
STEPS = 512  # 32 MiB in all: several times the limit of the spool
LIMIT = 2 << 20
# In addition to the spool: the data that is written and sent at a time (a frame, a page of messages), and everything else in this process.
OVERHEAD = (MAKERS * 3 * STEP) + (1 << 20)


def message(n: int, size: int = STEP) -> Outgoing:
    body = b'"%08d%s"' % (n, b"x" * (size - 10))
    return Outgoing(
        subject=subjects.steps("demo", "1"), msg_id=f"1:1:{n}:step", schema="StepRecorded/1", body=body
    )


async def test_at_its_limit_a_journal_blocks_every_writer_until_something_is_settled_and_keeps_all_that_came(
    tmp_path: Path,
) -> None:
    async with Journal.open(tmp_path, limit_bytes=3 * STEP) as journal:
        passed: list[int] = []

        async def make(n: int) -> None:
            await journal.room()
            await journal.append(message(n))
            passed.append(n)

        for n in range(3):
            await make(n)
        assert journal.full and journal.held_bytes == 3 * STEP
        async with anyio.create_task_group() as tasks:
            for n in (3, 4):
                tasks.start_soon(make, n)
            await anyio.wait_all_tasks_blocked()
            assert passed == [0, 1, 2], "the spool is full"
            await journal.settle([99])  # the journal does not contain it
            await anyio.wait_all_tasks_blocked()
            assert passed == [0, 1, 2], "there still is none"
            first = journal.pending()[0]
            await journal.settle([first.n])
            assert not journal.full
        assert passed[:3] == [0, 1, 2] and sorted(passed) == [0, 1, 2, 3, 4]
        kept = {entry.message.msg_id for entry in journal.pending()}
    # Its room is known after a restart, too.
    async with Journal.open(tmp_path, limit_bytes=3 * STEP) as journal:
        assert {entry.message.msg_id for entry in journal.pending()} == kept
        assert kept == {message(n).msg_id for n in range(1, 5)}
        assert journal.full and journal.held_bytes == 4 * STEP


@dataclass(kw_only=True)
class Services:
    """A bus that remembers which messages it was given, and a data pool that has them. Each may be away."""

    bus_there: anyio.Event = field(default_factory=anyio.Event)
    pool_there: anyio.Event = field(default_factory=anyio.Event)
    given: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)

    async def confirm(self, msg_ids: Sequence[str]) -> Collection[str]:
        await self.pool_there.wait()
        self.stored |= set(msg_ids)
        return msg_ids


class ForgetfulBus(MemoryBus):
    """Keeps no bodies: the memory of NATS is not that of its clients."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services

    async def publish_many(self, messages: Sequence[Outgoing]) -> list[bool | BusError]:
        await self._services.bus_there.wait()
        self._services.given |= {str(each.msg_id) for each in messages}
        return [True for _ in messages]


@dataclass(kw_only=True)
class Sessions:
    """MAKERS sessions record STEPS steps between them, each after there was `room`."""

    room: Callable[[], Awaitable[None]]
    courier: Courier
    left: list[int] = field(default_factory=lambda: list(range(STEPS)))
    recorded: set[int] = field(default_factory=set)
    waiting: int = 0  # for room

    async def record(self) -> None:
        while self.left:
            self.waiting += 1
            await self.room()
            self.waiting -= 1
            if self.left:
                n = self.left.pop()
                await self.courier.send(message(n))
                self.recorded.add(n)


def on_disk(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.journal"))


async def most_memory(directory: Path, away: str, room: Callable[[Courier], Awaitable[None]]) -> int:
    """The most bytes that recording all STEPS took at any time; as many steps as possible are recorded while a service is away."""
    services = Services()
    there, gone = services.pool_there, services.bus_there
    if away == "postgres":
        there, gone = gone, there
    there.set()
    async with Journal.open(directory, limit_bytes=LIMIT) as journal, anyio.create_task_group() as tasks:
        bus = ForgetfulBus(services)
        courier = Courier(journal, bus, confirm=services.confirm, confirm_every_s=0.005)
        sessions = Sessions(room=partial(room, courier), courier=courier)
        gc.collect()
        tracemalloc.start()
        try:
            with use(Timeouts(courier_resend_s=0.05)):
                tasks.start_soon(courier.run)
            for _ in range(MAKERS):
                tasks.start_soon(sessions.record)
            await eventually(lambda: sessions.waiting == MAKERS or len(sessions.recorded) == STEPS)
            held, kept = journal.held_bytes, on_disk(directory)
            recorded = len(sessions.recorded)
            assert journal.full and held == recorded * STEP and services.stored == set()
            if recorded < STEPS:
                assert held <= LIMIT + MAKERS * STEP and kept <= LIMIT + 2 * MAKERS * STEP
            gone.set()
            await eventually(lambda: len(sessions.recorded) == STEPS and not journal.pending())
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        wanted = {message(n, 16).msg_id for n in range(STEPS)}
        assert services.given == services.stored == wanted, "nothing is lost"
        tasks.cancel_scope.cancel()
    return most


async def asks(courier: Courier) -> None:
    await courier.room()


async def asks_nothing(_: Courier) -> None:
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("away", ["postgres", "nats"])
async def test_while_a_service_is_away_memory_holds_the_spool_and_no_more_whatever_is_to_be_recorded(
    tmp_path: Path, away: str
) -> None:
    assert await most_memory(tmp_path, away, asks) < LIMIT + OVERHEAD < STEPS * STEP // 6


async def test_the_bound_is_one_that_steps_kept_in_memory_go_beyond(tmp_path: Path) -> None:
    assert await most_memory(tmp_path, "postgres", asks_nothing) > STEPS * STEP // 2 > 3 * (LIMIT + OVERHEAD)
