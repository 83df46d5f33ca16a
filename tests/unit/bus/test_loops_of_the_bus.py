"""The background work of the bus is in the registry of its process: a lost connection, and the task that refills lost streams."""

from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from orchestrator.bus.client import NatsClient
from orchestrator.bus.link import Connection, Link
from orchestrator.bus.watch import Sighting, StreamWatch
from orchestrator.runtime.liveness import Loop, LoopRegistry, loop_registry
from tests.waiting import eventually, stays_true_for

pytestmark = pytest.mark.anyio

CLOSED_PORT = "nats://127.0.0.1:9"


async def until_works(registry: LoopRegistry, name: str) -> Loop:
    def at_work() -> list[Loop]:
        return [loop for loop in registry.loops().values() if loop.name == name and not loop.resting]

    return (await eventually(at_work, every_s=0.002))[0]


async def test_a_connection_that_does_not_come_back_is_work_that_waits_for_nats() -> None:
    link = Link(CLOSED_PORT, "test", lambda: None)
    link._current = Connection(
        client=cast(NatsClient, SimpleNamespace(is_closed=False)), js=None, max_payload=0
    )
    with loop_registry("test") as registry:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            await anyio.wait_all_tasks_blocked()
            (resting,) = registry.loops().values()
            assert resting.name == "bus.link" and resting.resting
            link._current.lose()
            loop = await until_works(registry, "bus.link")
            assert (loop.item, loop.waits_for) == ("a connection", "nats")
            since = loop.since
            await stays_true_for(0.3, lambda: loop.since == since)  # several failed tries are not progress
            tasks.cancel_scope.cancel()
        assert registry.loops() == {}


async def test_who_hangs_while_it_fills_a_lost_stream_again_is_named_with_the_stream() -> None:
    seen = {"WORK": Sighting("first", 0, made=False)}

    async def look() -> dict[str, Sighting]:
        return seen

    async def hangs(stream: str) -> None:
        await anyio.sleep_forever()

    watch = StreamWatch(look, None)
    watch.on_stream_new(hangs)
    with loop_registry("test") as registry:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            watch.ask()
            await anyio.wait_all_tasks_blocked()
            assert all(loop.resting for loop in registry.loops().values())
            seen["WORK"] = Sighting("another", 0, made=False)
            watch.ask()
            loop = await until_works(registry, "bus.streams")
            await anyio.wait_all_tasks_blocked()
            assert loop.item == "what stream WORK lost"
            tasks.cancel_scope.cancel()
