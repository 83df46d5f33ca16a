"""The bus in memory under a clock that a test moves: nothing waits for real time."""

from dataclasses import replace

import anyio
import pytest

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from tests.memory_bus import ManualClock, MemoryBus

pytestmark = pytest.mark.anyio

STEP = Outgoing(
    subject=subjects.steps("demo", "r1"), msg_id="r1:1:0:step", schema="StepRecorded/1", body=b"0"
)
CONSUMER = subjects.consume_steps("demo")


async def test_a_message_comes_again_when_the_clock_passes_the_ack_wait() -> None:
    clock = ManualClock()
    async with MemoryBus.open(clock=clock) as bus, bus.subscribe(CONSUMER) as arriving:
        await bus.publish(STEP)
        assert [delivery.deliveries for delivery in await arriving.take(1)] == [1]
        clock.advance(CONSUMER.ack_wait_s - 0.001)
        with anyio.move_on_after(0.05) as waited:
            await arriving.take(1)
        assert waited.cancelled_caught
        clock.advance(0.001)
        with anyio.fail_after(5):
            assert [delivery.deliveries for delivery in await arriving.take(1)] == [2]


async def test_a_delay_is_measured_by_the_clock() -> None:
    clock = ManualClock()
    async with MemoryBus.open(clock=clock) as bus, bus.subscribe(CONSUMER) as arriving:
        await bus.publish(STEP)
        [delivery] = await arriving.take(1)
        await delivery.nak(delay_s=3600)
        clock.advance(3600)
        with anyio.fail_after(5):
            assert [delivery.body for delivery in await arriving.take(1)] == [b"0"]


async def test_an_id_is_forgotten_after_the_window() -> None:
    clock = ManualClock()
    async with MemoryBus.open(clock=clock) as bus:
        assert await bus.publish(STEP)
        clock.advance(subjects.DEDUP_WINDOW_S - 0.001)
        assert not await bus.publish(STEP)
        clock.advance(0.001)
        assert await bus.publish(STEP)


async def test_no_more_is_delivered_than_may_be_unacknowledged() -> None:
    async with (
        MemoryBus.open(clock=ManualClock()) as bus,
        bus.subscribe(replace(CONSUMER, max_ack_pending=3)) as arriving,
    ):
        for number in range(5):
            await bus.publish(replace(STEP, msg_id=str(number)))
        with anyio.fail_after(5):
            first = await arriving.take(5)
            assert len(first) == 3
            await first[0].ack()
            assert len(await arriving.take(5)) == 1
