"""What the bus does by itself is on the board of its process: a lost connection, and whoever fills lost streams again."""

from types import SimpleNamespace

import anyio
import pytest

from orchestrator.bus.link import Connection, Link
from orchestrator.bus.watch import Sighting, StreamWatch
from orchestrator.progress import Board, Loop, boarding

pytestmark = pytest.mark.anyio

NOBODY_LISTENS = "nats://127.0.0.1:9"


async def until_works(board: Board, name: str) -> Loop:
    with anyio.fail_after(10):
        while True:
            for loop in board.loops().values():
                if loop.name == name and not loop.resting:
                    return loop
            await anyio.sleep(0.002)


async def test_a_connection_that_does_not_come_back_is_work_that_waits_for_nats() -> None:
    link = Link(NOBODY_LISTENS, "test", lambda: None)
    link._current = Connection(SimpleNamespace(is_closed=False), None, 0)  # type: ignore[arg-type]
    with boarding("test") as board:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            await anyio.wait_all_tasks_blocked()
            (resting,) = board.loops().values()
            assert resting.name == "bus.link" and resting.resting
            link._current.lose()
            loop = await until_works(board, "bus.link")
            assert (loop.item, loop.waits_for) == ("a connection", "nats")
            since = loop.since
            await anyio.sleep(0.3)  # several tries, in vain
            assert loop.since == since, "which is no progress"
            tasks.cancel_scope.cancel()
        assert board.loops() == {}


async def test_who_hangs_while_it_fills_a_lost_stream_again_is_named_with_the_stream() -> None:
    seen = {"WORK": Sighting("first", 0, made=False)}

    async def look() -> dict[str, Sighting]:
        return seen

    async def hangs(stream: str) -> None:
        await anyio.sleep_forever()

    watch = StreamWatch(look, None)
    watch.on_stream_new(hangs)
    with boarding("test") as board:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            watch.ask()
            await anyio.wait_all_tasks_blocked()
            assert all(loop.resting for loop in board.loops().values())
            seen["WORK"] = Sighting("another", 0, made=False)
            watch.ask()
            loop = await until_works(board, "bus.streams")
            await anyio.wait_all_tasks_blocked()
            assert loop.item == "what stream WORK lost"
            tasks.cancel_scope.cancel()
