"""The reports of loops, and when they mean that a loop is stuck."""

import time
from contextlib import suppress

import anyio
import pytest

from orchestrator.runtime.liveness import (
    current,
    loop_registry,
    pause,
    reporting,
    restartable,
    track_loop,
    waiting_for,
)

pytestmark = pytest.mark.anyio

LIMIT_S = 60.0


def test_a_loop_that_works_is_stuck_after_the_limit_and_one_that_rests_never_is() -> None:
    with loop_registry("test"), track_loop("loop") as loop:
        loop.busy("item")
        assert loop.stuck_for(loop.since + LIMIT_S, LIMIT_S) == 0
        assert loop.stuck_for(loop.since + LIMIT_S + 1, LIMIT_S) == pytest.approx(LIMIT_S + 1)
        loop.idle("work")
        assert loop.stuck_for(loop.since + 100 * LIMIT_S, LIMIT_S) == 0 and loop.waits_for == "work"
        loop.busy("large item", within=3 * LIMIT_S)
        assert loop.stuck_for(loop.since + 2 * LIMIT_S, LIMIT_S) == 0
        assert loop.stuck_for(loop.since + 4 * LIMIT_S, LIMIT_S) == pytest.approx(4 * LIMIT_S)


def test_a_dependency_is_named_deep_inside_and_getting_it_is_progress() -> None:
    with loop_registry("test"), track_loop("loop") as loop:
        loop.busy("item", on="itself")
        loop.since -= 10
        with waiting_for("postgres"):
            assert loop.waits_for == "postgres"
            with waiting_for("nats"):
                assert loop.waits_for == "postgres", "the outer one is not there yet"
        assert loop.waits_for == "itself" and time.monotonic() - loop.since < 10
        before = loop.since
        with pytest.raises(OSError), waiting_for("postgres"):
            raise OSError("gone")
        assert (loop.since, loop.waits_for) == (before, "itself"), "not getting it is none"


async def test_tasks_that_a_loop_starts_wait_on_its_behalf() -> None:
    with loop_registry("test"), track_loop("loop") as loop:
        release = anyio.Event()

        async def wait() -> None:
            with waiting_for("nats"):
                await release.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert loop.waits_for == "nats"
            release.set()
        assert loop.waits_for == ""


async def test_a_cancelled_loop_leaves_the_registry_and_one_that_ended_by_itself_stays() -> None:
    with loop_registry("test") as registry:

        async def serve(name: str) -> None:
            with track_loop(name):
                match name:
                    case "cancelled":
                        await anyio.sleep_forever()
                    case "failed":
                        raise ValueError("what no one\nforesaw")

        async def swallow(name: str) -> None:
            with suppress(ValueError):
                await serve(name)

        async with anyio.create_task_group() as tasks:
            for name in ("cancelled", "failed", "returned"):
                tasks.start_soon(swallow, name)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        ended = {loop.name: loop.ended for loop in registry.loops().values()}
        assert ended == {"failed": "ValueError: what no one", "returned": "it returned"}
        assert all(loop.stuck_for(time.monotonic(), LIMIT_S) > 0 for loop in registry.loops().values())


async def test_a_loop_that_is_not_forever_may_return_but_not_fail() -> None:
    with loop_registry("test") as registry:
        with track_loop("slot", forever=False):
            pass
        assert registry.loops() == {}
        with pytest.raises(KeyError), track_loop("slot", forever=False):
            raise KeyError("rollout")
        assert [loop.ended for loop in registry.loops().values()] == ["KeyError: 'rollout'"]


async def test_a_restartable_loop_starts_again_on_request_and_ends_when_it_is_cancelled() -> None:
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        current().busy("item")
        await anyio.sleep_forever()

    with loop_registry("test") as registry:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restartable, "loop", work)
            for times in (1, 2, 3):
                await anyio.wait_all_tasks_blocked()
                (loop,) = registry.loops().values()
                assert (starts, loop.restarts, loop.item, loop.ended) == (times, times - 1, "item", "")
                assert loop.restart is not None
                loop.restart()
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert registry.loops() == {} and starts == 4


async def test_a_restartable_loop_that_fails_says_so_and_raises() -> None:
    async def work() -> None:
        raise ValueError("no")

    with loop_registry("test") as registry:
        with pytest.raises(ValueError, match="no"):
            await restartable("loop", work)
        assert [loop.ended for loop in registry.loops().values()] == ["ValueError: no"]


async def test_a_line_without_a_loop_of_its_own_is_updated_by_hand() -> None:
    with loop_registry("test") as registry, track_loop("courier") as loop, reporting("journal") as line:
        assert current() is loop and line in registry.loops().values() and line.resting
        line.busy("a message", on="nats")
        since = line.since
        with waiting_for("postgres"):
            pass
        await pause(0)
        assert (line.since, line.waits_for) == (since, "nats"), "what the loop does is not its progress"


async def test_without_a_registry_nothing_is_kept_and_everything_works() -> None:
    with track_loop("loop"), waiting_for("nats"), reporting("line") as line:
        line.busy("item")
        await pause(0)
    current().busy("no one sees it")
