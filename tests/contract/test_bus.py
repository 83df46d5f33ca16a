"""Requirements for every bus, tested on the in-memory bus and on a real NATS server alike."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from secrets import token_hex

import anyio
import anyio.lowlevel
import nats
import pytest
from nats.js.errors import NotFoundError

from orchestrator.bus import subjects
from orchestrator.bus.base import Bus, ConsumerConflict, Delivery, Outgoing, StreamFull, TooLarge
from orchestrator.bus.nats import NatsBus
from orchestrator.bus.pull import Timing
from orchestrator.bus.subjects import Consumer
from orchestrator.deploy.embedded.nats import EmbeddedNats
from tests.contract.bus_rig import first_streams, letters_of
from tests.memory_bus import MemoryBus
from tests.waiting import stays_true_for

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

STREAMS = tuple(
    replace(s, max_msgs=5, max_bytes=32 << 20) if s.name == "TASKS" else replace(s, max_bytes=32 << 20)
    for s in subjects.STREAMS
)
TIMING = Timing(expires_s=2.0, heartbeat_s=0.5, poll_interval_s=0.1)
ACK_WAIT_S = 0.3
AFTER_S = 3.0  # an unsettled message would come again by then


@dataclass
class Rig:
    """A bus under test, and access to delete its streams underneath it."""

    bus: Bus
    wipe: Callable[[], Awaitable[None]]


@pytest.fixture(params=["memory", "nats"])
async def rig(request: pytest.FixtureRequest, nats_server: EmbeddedNats) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            memory = await stack.enter_async_context(MemoryBus.open(streams=STREAMS))

            async def wipe_memory() -> None:
                memory.wipe()

            await first_streams(memory)
            yield Rig(memory, wipe_memory)
            return
        prefix = f"t{token_hex(4)}"
        foreign = await stack.enter_async_context(await nats.connect(nats_server.url))

        async def wipe_server() -> None:
            for stream in subjects.STREAMS:
                with suppress(NotFoundError):  # deleted before, and not recreated yet
                    await foreign.jetstream().delete_stream(f"{prefix.upper()}_{stream.name}")

        bus = await stack.enter_async_context(
            NatsBus.connect(nats_server.url, name="test", prefix=prefix, timing=TIMING, streams=STREAMS)
        )
        await first_streams(bus)
        yield Rig(bus, wipe_server)
        await wipe_server()


@pytest.fixture
def bus(rig: Rig) -> Bus:
    return rig.bus


def step(number: int, run: str = "demo", **changes: object) -> Outgoing:
    """A step message; its body is its number."""
    message = Outgoing(
        subject=subjects.steps(run, "r1"),
        msg_id=f"r1:1:{number}:step",
        schema="StepRecorded/1",
        body=str(number).encode(),
    )
    return replace(message, **changes)  # type: ignore[arg-type]


def quick(consumer: Consumer, **changes: object) -> Consumer:
    """The consumer with an ack wait that a test can wait for."""
    return replace(consumer, ack_wait_s=ACK_WAIT_S, **changes)  # type: ignore[arg-type]


def settled_in_time(consumer: Consumer) -> Consumer:
    """The consumer with an ack wait that is longer than a pause of the machine, and shorter than `AFTER_S`."""
    return replace(consumer, ack_wait_s=AFTER_S / 1.5)


async def take(bus: Bus, consumer: Consumer, count: int, *, within_s: float = 60.0) -> list[Delivery]:
    """Take and acknowledge exactly ``count`` messages."""
    taken: list[Delivery] = []
    with anyio.fail_after(within_s):
        async with bus.subscribe(consumer) as arriving:
            while len(taken) < count:
                taken += await arriving.take(count - len(taken))
            for delivery in taken:
                await delivery.ack()
    return taken


async def nothing_more(bus: Bus, consumer: Consumer, *, for_s: float = 0.2) -> bool:
    """Whether the consumer gets nothing for a while."""
    with anyio.move_on_after(for_s):
        async with bus.subscribe(consumer) as arriving:
            await arriving.take(1)
            return False
    return True


async def test_a_message_arrives_as_it_was_sent(bus: Bus) -> None:
    sent = Outgoing(
        subject="steps.demo.r1",
        msg_id="r1:1:0:step",
        schema="StepRecorded/1",
        body=b'{"text": "\xc3\xa9"}',
        headers={"Trace": "abc"},
    )
    assert await bus.publish(sent) is True
    [got] = await take(bus, subjects.consume_steps("demo"), 1)
    assert (got.stream, got.subject, got.body) == ("STEPS", sent.subject, sent.body)
    assert (got.schema, got.msg_id, got.deliveries) == ("StepRecorded/1", "r1:1:0:step", 1)
    assert got.headers["Trace"] == "abc"


async def test_an_acknowledged_message_never_comes_again(bus: Bus) -> None:
    await bus.publish(step(0))
    await take(bus, settled_in_time(subjects.consume_steps("demo")), 1)
    assert await nothing_more(bus, settled_in_time(subjects.consume_steps("demo")), for_s=AFTER_S)


async def test_the_same_id_is_stored_once(bus: Bus) -> None:
    assert [await bus.publish(step(0)), await bus.publish(step(0)), await bus.publish(step(1))] == [
        True,
        False,
        True,
    ]
    got = await take(bus, subjects.consume_steps("demo"), 2)
    assert [delivery.body for delivery in got] == [b"0", b"1"]
    assert await nothing_more(bus, subjects.consume_steps("demo"))


async def test_many_are_published_with_one_result_each(bus: Bus) -> None:
    await bus.publish(step(1))
    results = await bus.publish_many([step(0), step(1), step(2, body=bytes(9 << 20)), step(3)])
    assert [r if isinstance(r, bool) else type(r) for r in results] == [True, False, TooLarge, True]


async def test_each_message_of_a_work_queue_goes_to_one_of_its_takers(bus: Bus) -> None:
    await bus.publish_many([step(number) for number in range(100)])
    by_taker: list[list[bytes]] = [[], []]
    done = anyio.Event()

    async def taker(mine: list[bytes]) -> None:
        async with bus.subscribe(subjects.consume_steps("demo"), batch=5) as arriving:
            async for delivery in arriving:
                mine.append(delivery.body)
                await delivery.ack()
                if sum(map(len, by_taker)) == 100:
                    done.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for mine in by_taker:
                group.start_soon(taker, mine)
            await done.wait()
            group.cancel_scope.cancel()
    assert sorted(by_taker[0] + by_taker[1]) == sorted(str(n).encode() for n in range(100))
    assert all(by_taker)


async def test_a_refused_message_comes_again_after_the_delay_and_not_before(bus: Bus) -> None:
    await bus.publish(step(0))
    patient = replace(subjects.consume_steps("demo"), ack_wait_s=3600.0)  # it alone brings nothing back
    async with bus.subscribe(patient) as arriving:
        with anyio.fail_after(60):
            [first] = await arriving.take(1)
            await first.nak(delay_s=0.3)
            refused_at = anyio.current_time()
            [second] = await arriving.take(1)
    assert anyio.current_time() - refused_at > 0.28
    assert (first.deliveries, second.deliveries, second.body) == (1, 2, b"0")


async def test_an_unsettled_message_comes_again_after_the_ack_wait(bus: Bus) -> None:
    await bus.publish(step(0))
    async with bus.subscribe(quick(subjects.consume_steps("demo"))) as arriving:
        with anyio.fail_after(60):
            await arriving.take(1)
            [again] = await arriving.take(1)
    assert again.deliveries == 2


async def test_a_message_in_progress_does_not_come_again(bus: Bus) -> None:
    await bus.publish(step(0))
    # Unlike `ACK_WAIT_S`, longer than a machine pauses: then nothing sends a sign of progress.
    ack_wait_s = 2.0
    consumer = replace(subjects.consume_steps("demo"), ack_wait_s=ack_wait_s)
    async with bus.subscribe(consumer) as arriving:
        with anyio.fail_after(60):
            [delivery] = await arriving.take(1)
        more: list[Delivery] = []

        async def take_more() -> None:
            more.extend(await arriving.take(1))

        async def kept() -> bool:
            await delivery.in_progress()
            return more == []

        async with anyio.create_task_group() as group:
            group.start_soon(take_more)
            await stays_true_for(2 * ack_wait_s, kept, every_s=0.1)
            group.cancel_scope.cancel()


async def test_a_terminated_message_never_comes_again(bus: Bus) -> None:
    await bus.publish(step(0))
    async with bus.subscribe(settled_in_time(subjects.consume_steps("demo"))) as arriving:
        with anyio.fail_after(60):
            [delivery] = await arriving.take(1)
        await delivery.term()
        await delivery.nak()  # settled already: no effect
    assert await nothing_more(bus, settled_in_time(subjects.consume_steps("demo")), for_s=AFTER_S)


async def test_a_message_delivered_too_often_becomes_a_dead_letter(bus: Bus) -> None:
    await bus.publish(step(0))
    consumer = quick(subjects.consume_steps("demo"), max_deliver=2)
    more: list[Delivery] = []
    async with bus.subscribe(consumer) as arriving:
        with anyio.fail_after(60):
            assert [(await arriving.take(1))[0].deliveries for _ in range(2)] == [1, 2]

        async def take_more() -> None:
            more.extend(await arriving.take(1))

        async with anyio.create_task_group() as group:
            group.start_soon(take_more)
            [letter] = await take(bus, letters_of("STEPS"), 1)
            await stays_true_for(2 * ACK_WAIT_S, lambda: more == [])
            group.cancel_scope.cancel()
    assert more == []
    assert letter.headers[subjects.HEADER_DEAD_REASON] == "delivered 2 times without an acknowledgement"
    assert letter.body == b"0"


async def test_a_dead_letter_keeps_the_message_its_reason_and_its_deliveries(bus: Bus) -> None:
    await bus.publish(step(7, headers={"Trace": "abc"}))
    async with bus.subscribe(settled_in_time(subjects.consume_steps("demo"))) as arriving:
        with anyio.fail_after(60):
            [delivery] = await arriving.take(1)
            await bus.dead_letter(delivery, "unknown schema\r\nInjected: StepRecorded/9 \udcff")
    [letter] = await take(bus, letters_of("STEPS"), 1)
    assert (letter.subject, letter.body, letter.schema) == ("dead.steps", b"7", "StepRecorded/1")
    assert letter.headers["Trace"] == "abc"
    assert "Injected" not in letter.headers
    assert letter.headers[subjects.HEADER_DEAD_REASON] == "unknown schema Injected: StepRecorded/9"
    assert letter.headers[subjects.HEADER_DEAD_SUBJECT] == "steps.demo.r1"
    assert letter.headers[subjects.HEADER_DEAD_DELIVERIES] == "1"
    assert letter.headers[subjects.HEADER_DEAD_MSG_ID] == "r1:1:7:step"
    assert letter.headers[subjects.HEADER_DEAD_KEPT] == "no"
    assert await nothing_more(bus, settled_in_time(subjects.consume_steps("demo")), for_s=AFTER_S)


async def test_the_largest_message_still_fits_into_a_dead_letter(bus: Bus) -> None:
    largest = step(0, body=b"x" * ((8 << 20) - 200))
    assert await bus.publish(largest)
    async with bus.subscribe(subjects.consume_steps("demo")) as arriving:
        with anyio.fail_after(60):
            [delivery] = await arriving.take(1)
            await bus.dead_letter(delivery, "far too long")
    [letter] = await take(bus, letters_of("STEPS"), 1)
    assert len(letter.body) < int(letter.headers[subjects.HEADER_DEAD_BODY_BYTES]) == len(largest.body)


async def test_what_was_never_published_can_be_a_dead_letter_too(bus: Bus) -> None:
    await bus.dead_letter(step(3), "too large for the bus")
    [letter] = await take(bus, letters_of("STEPS"), 1)
    assert (letter.body, letter.headers[subjects.HEADER_DEAD_DELIVERIES]) == (b"3", "0")


async def test_a_full_stream_refuses_and_loses_nothing(bus: Bus) -> None:
    tasks = [
        Outgoing(
            subject="tasks.demo.coding", msg_id=f"demo:{n}", schema="TaskSubmitted/1", body=str(n).encode()
        )
        for n in range(6)
    ]
    for task in tasks[:5]:
        assert await bus.publish(task)
    with pytest.raises(StreamFull, match="TASKS"):
        await bus.publish(tasks[5])
    [first] = await take(bus, subjects.consume_tasks(), 1)
    with anyio.fail_after(60):
        while True:  # the server frees the place a moment after the acknowledgement
            try:
                assert await bus.publish(tasks[5])
                break
            except StreamFull:
                await anyio.lowlevel.checkpoint()
    rest = await take(bus, subjects.consume_tasks(), 5)
    assert {first.body, *(delivery.body for delivery in rest)} == {task.body for task in tasks}


async def test_a_late_reader_of_the_policy_sees_the_last_version_and_then_the_new_ones(bus: Bus) -> None:
    for version in (1, 2, 3):
        await bus.publish(
            Outgoing(
                subject=subjects.policy("demo"),
                msg_id=f"p{version}",
                schema="PolicyPublished/1",
                body=b"%d" % version,
            )
        )
    await bus.publish(
        Outgoing(subject=subjects.policy("other"), msg_id="o9", schema="PolicyPublished/1", body=b"9")
    )
    async with (
        bus.subscribe(subjects.consume_policy("demo")) as one,
        bus.subscribe(subjects.consume_policy("demo")) as two,
    ):
        with anyio.fail_after(60):
            for reader in (one, two):
                [last] = await reader.take(10)
                assert last.body == b"3"
                await last.ack()
            await bus.publish(
                Outgoing(subject=subjects.policy("demo"), msg_id="p4", schema="PolicyPublished/1", body=b"4")
            )
            for reader in (one, two):
                assert [delivery.body for delivery in await reader.take(10)] == [b"4"]


async def test_missing_streams_are_made_again_and_named(rig: Rig) -> None:
    assert await rig.bus.ensure_streams() == []
    notified: list[str] = []
    all_notified = anyio.Event()

    async def on_new(stream: str) -> None:
        notified.append(stream)
        if len(notified) == len(subjects.STREAMS):
            all_notified.set()

    rig.bus.on_stream_new(on_new)
    await rig.wipe()
    with anyio.fail_after(60):
        await all_notified.wait()
    assert sorted(notified) == sorted(stream.name for stream in subjects.STREAMS)
    assert await rig.bus.ensure_streams() == []


async def test_consumption_and_publishing_go_on_after_a_wipe_and_senders_can_publish_again(rig: Rig) -> None:
    bus = rig.bus
    lost = [step(number) for number in range(10)]
    notified = anyio.Event()

    async def publish_again(stream: str) -> None:
        if stream == "STEPS":
            await bus.publish_many(lost)
            notified.set()

    bus.on_stream_new(publish_again)
    await bus.publish_many(lost)
    seen: set[bytes] = set()
    with anyio.fail_after(60):
        async with bus.subscribe(subjects.consume_steps("demo"), batch=4) as arriving:
            before = await arriving.take(4)  # taken, not yet acknowledged
            await rig.wipe()
            await notified.wait()
            await bus.publish(step(10))
            for delivery in before:
                await delivery.ack()  # too late: these belong to a stream that is gone
            while len(seen) < 11:
                for delivery in await arriving.take(4):
                    seen.add(delivery.body)
                    await delivery.ack()
    assert seen == {str(number).encode() for number in range(11)}


async def test_a_publish_into_a_wiped_stream_is_stored(rig: Rig) -> None:
    await rig.wipe()
    with anyio.fail_after(60):
        assert await rig.bus.publish(step(1))
    assert [delivery.body for delivery in await take(rig.bus, subjects.consume_steps("demo"), 1)] == [b"1"]


async def test_an_acknowledgement_from_before_a_wipe_settles_nothing_after_it(rig: Rig) -> None:
    consumer = quick(subjects.consume_steps("demo"))
    await rig.bus.publish(step(0))
    async with rig.bus.subscribe(consumer) as arriving:
        with anyio.fail_after(60):
            [old] = await arriving.take(1)
            await rig.wipe()
            await rig.bus.ensure_streams()
            await rig.bus.publish(step(1))
            [new] = await arriving.take(1)
            assert (new.body, new.deliveries) == (b"1", 1)
            await old.ack()
            [again] = await arriving.take(1)
    assert (again.body, again.deliveries) == (b"1", 2)


async def test_a_listener_receives_a_notice(bus: Bus) -> None:
    await bus.notify(subjects.accepted("demo", "s1"), b"no one listens yet")
    async with bus.listen("accepted.demo.*") as notices, bus.listen("accepted.other.*") as elsewhere:
        await bus.notify(subjects.accepted("demo", "s1"), b"accepted")
        with anyio.fail_after(60):
            notice = await anext(notices)
        assert (notice.subject, notice.body) == ("accepted.demo.s1", b"accepted")
        with anyio.move_on_after(0.1) as waited:
            await anext(elsewhere)
        assert waited.cancelled_caught


async def test_a_message_too_large_is_refused_with_the_limit_and_the_way_out(bus: Bus) -> None:
    with pytest.raises(TooLarge, match=r"8,388,608 \(max_payload\).*blob.*sha256"):
        await bus.publish(step(0, body=bytes(8 << 20)))
    assert bus.max_payload == 8 << 20
    assert await bus.publish(step(0))


async def test_a_subject_that_no_stream_stores_is_refused(bus: Bus) -> None:
    with pytest.raises(ValueError, match=r"no stream stores the subject 'steps\.demo'"):
        await bus.publish(step(0, subject="steps.demo"))


async def test_runs_and_pools_do_not_meet(bus: Bus) -> None:
    sent = {(run, pool): f"{run}/{pool}".encode() for run in ("a", "a-b") for pool in ("b-c", "c", "default")}
    for (run, pool), body in sent.items():
        await bus.publish(
            Outgoing(
                subject=subjects.work_rollout(run, pool),
                msg_id=body.decode(),
                schema="RolloutAssigned/1",
                body=body,
            )
        )
        await bus.publish(
            Outgoing(
                subject=subjects.work_verify(run, pool),
                msg_id=f"v{body!r}",
                schema="VerifyAssigned/1",
                body=b"v" + body,
            )
        )
    for (run, pool), body in sent.items():
        [rollout] = await take(bus, subjects.consume_work_rollout(run, pool), 1)
        [verify] = await take(bus, subjects.consume_work_verify(run, pool), 1)
        assert (rollout.body, verify.body) == (body, b"v" + body)


async def test_an_overlapping_consumer_is_refused(bus: Bus) -> None:
    overlapping = Consumer(stream="TASKS", durable="second", filter="tasks.demo.*", max_ack_pending=10)
    await bus.publish(Outgoing(subject="tasks.demo.coding", msg_id="t0", schema="TaskSubmitted/1", body=b"0"))
    await take(bus, subjects.consume_tasks(), 1)  # its consumer is there
    with pytest.raises(ConsumerConflict, match="one durable per run"), anyio.fail_after(60):
        async with bus.subscribe(overlapping) as arriving:
            await arriving.take(1)


async def test_nothing_is_fetched_for_a_busy_consumer_or_one_that_never_made_a_request(bus: Bus) -> None:
    consumer = subjects.consume_work_rollout("demo")

    async def assign(number: int) -> None:
        await bus.publish(
            Outgoing(
                subject=consumer.filter, msg_id=f"w{number}", schema="RolloutAssigned/1", body=b"%d" % number
            )
        )

    async with bus.subscribe(consumer, batch=1) as busy, bus.subscribe(consumer, batch=1) as idle:
        await bus.publish(step(0))
        await take(bus, subjects.consume_steps("demo"), 1)  # long enough for a fetch that should not happen
        with anyio.fail_after(60):
            await assign(0)
            assert [delivery.body for delivery in await idle.take(1)] == [b"0"]
            await assign(1)
            assert [delivery.body for delivery in await busy.take(1)] == [b"1"]
            for number in (2, 3, 4):
                await assign(number)
            assert [(await idle.take(1))[0].body for _ in range(3)] == [b"2", b"3", b"4"]


async def test_what_was_fetched_and_not_taken_is_handed_back_at_the_end(bus: Bus) -> None:
    await bus.publish_many([step(number) for number in range(10)])
    consumer = subjects.consume_steps("demo")  # its ack wait is far longer than this test
    async with bus.subscribe(consumer, batch=10) as arriving:
        with anyio.fail_after(60):
            [first] = await arriving.take(1)
            await first.ack()
    assert {delivery.body for delivery in await take(bus, consumer, 9)} == {b"%d" % n for n in range(10)} - {
        first.body
    }


async def test_an_error_of_the_taker_leaves_unchanged(bus: Bus) -> None:
    with pytest.raises(LookupError, match="as it is"):
        async with bus.subscribe(subjects.consume_steps("demo")):
            raise LookupError("as it is")
