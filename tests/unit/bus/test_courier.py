"""The courier through outages: which messages it sends, when it repeats them, and which it holds back until then."""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest

from orchestrator.bus import subjects
from orchestrator.bus.base import BusError, Outgoing, TooLarge
from orchestrator.bus.courier import PAGE, Courier
from orchestrator.bus.journal import Journal, JournalEntry
from orchestrator.runtime.liveness import loop_registry
from orchestrator.settings.timeouts import Timeouts, use
from tests.memory_bus import MemoryBus
from tests.waiting import eventually, stays_true_for

pytestmark = pytest.mark.anyio


@dataclass(kw_only=True)
class DataPool:
    """Has the data that a test defines. While `away`, it does not answer."""

    has: set[str] = field(default_factory=set)
    answers: int = 0
    most_queried: int = 0  # messages of the largest query
    back: anyio.Event = field(default_factory=anyio.Event)

    async def confirm(self, msg_ids: Sequence[str]) -> Collection[str]:
        self.most_queried = max(self.most_queried, len(msg_ids))
        await self.back.wait()
        self.answers += 1
        return self.has & set(msg_ids)


class CountingBus(MemoryBus):
    """Remembers its messages, their order, and how many came at a time. `refuses`: its stream is full."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[str] = []
        self.largest = 0
        self.refuses = False
        self.max_bytes = 1000

    async def publish_many(self, messages: Sequence[Outgoing]) -> list[bool | BusError]:
        self.given += [str(message.msg_id) for message in messages]
        self.largest = max(self.largest, len(messages))
        if self.refuses:
            return [BusError("the stream is full") for _ in messages]
        return [
            TooLarge(f"{len(message.body)} bytes are too many")
            if len(message.body) > self.max_bytes
            else await self.publish(message)
            for message in messages
        ]


def message(n: int) -> Outgoing:
    return Outgoing(
        subject=subjects.steps("demo", "1"),
        msg_id=f"1:1:{n}:step",
        schema="StepRecorded/1",
        body=b'{"n":%d}' % n,
    )


async def until_answers(pool: DataPool, more: int) -> None:
    wanted = pool.answers + more
    await eventually(lambda: pool.answers >= wanted)


@dataclass(kw_only=True)
class Post:
    journal: Journal
    bus: CountingBus
    pool: DataPool
    courier: Courier

    async def until_given(self, n: int) -> None:
        await eventually(lambda: len(self.bus.given) >= n)

    async def until_kept(self, n: int) -> None:
        await eventually(lambda: len(self.journal.pending()) == n)


@pytest.fixture
async def post(tmp_path: Path) -> AsyncIterator[Post]:
    bus, pool = CountingBus(), DataPool()
    await bus.ensure_streams()
    async with Journal.open(tmp_path, limit_bytes=20) as journal, anyio.create_task_group() as tasks:
        courier = Courier(journal, bus, confirm=pool.confirm, confirm_every_s=0.005)
        with use(Timeouts(courier_resend_s=0.05)):
            tasks.start_soon(courier.run)
        yield Post(journal=journal, bus=bus, pool=pool, courier=courier)
        tasks.cancel_scope.cancel()


async def test_while_the_data_pool_is_away_nothing_is_sent_twice_and_nothing_is_dropped(post: Post) -> None:
    for n in range(5):
        await post.courier.send(message(n))
    await post.until_given(5)
    # several times `courier_resend_s`
    await stays_true_for(4 * 0.05, lambda: len(post.bus.given) == len(post.journal.pending()) == 5)
    post.pool.has = {entry.message.msg_id for entry in post.journal.pending()}
    post.pool.back.set()
    await post.until_kept(0)
    assert len(post.bus.given) == 5


async def test_what_the_data_pool_says_it_does_not_have_is_sent_again(post: Post) -> None:
    post.pool.back.set()
    await post.courier.send(message(0))
    await post.until_given(2)
    assert set(post.bus.given) == {"1:1:0:step"}


async def test_what_is_sent_within_a_moment_is_published_together(tmp_path: Path) -> None:
    bus, pool = CountingBus(), DataPool()
    await bus.ensure_streams()
    async with Journal.open(tmp_path) as journal, anyio.create_task_group() as tasks:
        courier = Courier(journal, bus, confirm=pool.confirm, linger_s=3.0)
        tasks.start_soon(courier.run)
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as sends:
            for n in range(3):
                sends.start_soon(courier.send, message(n))
        await Post(journal=journal, bus=bus, pool=pool, courier=courier).until_given(3)
        assert bus.largest == 3
        tasks.cancel_scope.cancel()


async def test_what_is_sent_just_before_the_end_is_still_published(tmp_path: Path) -> None:
    bus, pool = CountingBus(), DataPool()
    await bus.ensure_streams()
    async with Journal.open(tmp_path) as journal, anyio.create_task_group() as tasks:
        courier = Courier(journal, bus, confirm=pool.confirm, linger_s=1000.0)
        tasks.start_soon(courier.run)
        await anyio.wait_all_tasks_blocked()
        await courier.send(message(0))
        tasks.cancel_scope.cancel()
    assert list(bus.given) == ["1:1:0:step"]


async def test_what_a_full_stream_refuses_is_tried_again_a_page_at_a_time(post: Post) -> None:
    post.bus.refuses = True
    async with anyio.create_task_group() as tasks:
        for n in range(2 * PAGE):
            tasks.start_soon(post.courier.send, message(n))
    await post.until_given(2 * PAGE + 1)
    post.bus.refuses = False
    post.pool.has = {entry.message.msg_id for entry in post.journal.pending()}
    post.pool.back.set()
    await post.until_kept(0)
    assert post.bus.largest <= PAGE and post.pool.most_queried <= PAGE
    assert {f"1:1:{n}:step" for n in range(2 * PAGE)} == set(post.bus.given)


async def test_producers_wait_while_the_journal_is_full(post: Post) -> None:
    await post.courier.room()
    for n in range(3):  # of 7 bytes each; nothing is refused
        await post.courier.send(message(n))
    waited = anyio.Event()

    async def wait() -> None:
        await post.courier.room()
        waited.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert post.journal.full and not waited.is_set()
        post.pool.has = {post.journal.pending()[0].message.msg_id}
        post.pool.back.set()
        with anyio.fail_after(60):
            await waited.wait()
    assert post.journal.held_bytes == 14


async def test_what_the_bus_can_never_take_is_sent_as_something_else_or_kept_elsewhere(
    tmp_path: Path,
) -> None:
    bus, pool, kept = CountingBus(), DataPool(), list[tuple[str, str]]()
    bus.max_bytes = 20
    await bus.ensure_streams()

    async def unsendable(entry: JournalEntry, reason: str) -> Outgoing | None:
        kept.append((entry.message.msg_id, reason))
        return replace(entry.message, body=b"short") if entry.message.msg_id == "1:1:0:step" else None

    async with Journal.open(tmp_path) as journal, anyio.create_task_group() as tasks:
        courier = Courier(journal, bus, confirm=pool.confirm, unsendable=unsendable, confirm_every_s=0.005)
        post = Post(journal=journal, bus=bus, pool=pool, courier=courier)
        for n in (0, 1):
            await courier.send(replace(message(n), body=b"x" * 21))
        await courier.send(message(2))
        tasks.start_soon(courier.run)
        pool.back.set()
        await post.until_given(4)
        assert kept == [("1:1:0:step", "21 bytes are too many"), ("1:1:1:step", "21 bytes are too many")]
        pool.has = {entry.message.msg_id for entry in journal.pending()}
        assert {entry.message.body for entry in journal.pending()} == {b"short", b'{"n":2}'}
        await post.until_kept(0)
        tasks.cancel_scope.cancel()


async def test_while_the_disk_refuses_what_is_sent_instead_the_courier_lives_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.bus.courier.REFUSED_AGAIN_S", 0.005)
    bus, pool, tries = CountingBus(), DataPool(), list[str]()
    bus.max_bytes = 20
    await bus.ensure_streams()

    async def unsendable(entry: JournalEntry, reason: str) -> Outgoing | None:
        tries.append(reason)
        return replace(entry.message, body=b"short")

    async with Journal.open(tmp_path) as journal, anyio.create_task_group() as tasks:
        courier = Courier(journal, bus, confirm=pool.confirm, unsendable=unsendable, confirm_every_s=0.005)
        await courier.send(replace(message(0), body=b"x" * 21))
        with monkeypatch.context() as patch:

            def refuse(self: Journal, data: bytes) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(Journal, "_write_durably", refuse)
            tasks.start_soon(courier.run)
            await eventually(lambda: len(tries) >= 3)
            assert [entry.message.body for entry in journal.pending()] == [b"x" * 21], "nothing is dropped"
        await eventually(lambda: [entry.message.body for entry in journal.pending()] == [b"short"])
        tasks.cancel_scope.cancel()


async def test_the_oldest_unconfirmed_message_is_named_with_the_service_that_it_waits_for(
    tmp_path: Path,
) -> None:
    bus, pool = CountingBus(), DataPool()
    await bus.ensure_streams()
    pool.back.set()
    with loop_registry("runner") as registry:
        async with Journal.open(tmp_path) as journal, anyio.create_task_group() as tasks:
            courier = Courier(journal, bus, confirm=pool.confirm, confirm_every_s=0.005)
            tasks.start_soon(courier.run)
            await courier.send(message(7))
            await until_answers(pool, 2)
            (line,) = [loop for loop in registry.loops().values() if loop.name == "journal"]
            assert (line.item, line.waits_for) == ("1:1:7:step", "the orchestrator's ingest")
            since = line.since
            await until_answers(pool, 2)
            assert line.since == since and line.stuck_for(since + 61, 60.0) > 60, (
                "answers alone are no progress"
            )
            pool.has = {entry.message.msg_id for entry in journal.pending()}
            await eventually(lambda: line.resting)
            tasks.cancel_scope.cancel()
