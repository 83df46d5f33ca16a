"""A consumer that holds as many messages as it may waits for rewards, which take their time: it is neither idle nor stuck."""

import time
from typing import Any

import anyio
import pytest

from orchestrator.roles.consume import MAX_HELD, _Consuming
from orchestrator.runtime.liveness import loop_registry, track_loop
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_a_consumer_that_is_full_is_busy_and_not_stuck_until_a_message_is_handled() -> None:
    nothing: Any = None
    work = _Consuming(
        context=nothing,
        consumer=nothing,
        handle=nothing,
        before=None,
        after=None,
        refused=None,
        failing=nothing,
        returned=nothing,
    )
    work._held = {bytes([n]): [] for n in range(MAX_HELD)}
    went_on = anyio.Event()

    async def consumer() -> None:
        with track_loop("verdicts", forever=False):
            await work.room()
            went_on.set()

    with loop_registry("orchestrator") as registry:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work.holding)
            tasks.start_soon(consumer)
            await eventually(lambda: [each.waits_for for each in registry.loops().values()] == ["rewards"])
            (loop,) = registry.loops().values()
            assert not loop.resting and loop.item == f"{MAX_HELD} held messages"
            assert loop.stuck_for(time.monotonic() + 600.0, 45.0) == 0.0
            work._held.popitem()
            work._changed.set()
            await went_on.wait()
            tasks.cancel_scope.cancel()
