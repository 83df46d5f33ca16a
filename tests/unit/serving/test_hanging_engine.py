"""The thread of the rollout server's engine: a step that never returns is noticed, a long series of steps is not taken for one."""

import threading
from collections.abc import AsyncIterator
from typing import cast

import anyio
import pytest

from tests.waiting import eventually, stays_true_for
from trainer.serving.engine import Engine
from trainer.serving.scheduler import Scheduler
from trainer.serving.sequence import Sequence

pytestmark = pytest.mark.anyio


class Steps:
    """Steps without end; each waits for `goes_on`."""

    def __init__(self) -> None:
        self.has_work = True
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.count = 0

    def step(self) -> list[Sequence]:
        self.count += 1
        self.goes_on.wait()
        return []


@pytest.fixture
async def steps() -> AsyncIterator[tuple[Steps, Engine]]:
    steps = Steps()
    engine = Engine(cast(Scheduler, steps), lambda _: None, lambda _: None)
    engine.start()
    yield steps, engine
    steps.goes_on.set()
    engine.stop(timeout=60.0)


async def test_a_step_that_never_returns_is_noticed(steps: tuple[Steps, Engine]) -> None:
    work, engine = steps
    work.goes_on.clear()
    with anyio.fail_after(60):
        await engine.hanging(checks=5, every_s=0.01)


async def test_an_engine_that_steps_or_rests_does_not_hang(steps: tuple[Steps, Engine]) -> None:
    work, engine = steps
    noticed = False

    async def watch() -> None:
        nonlocal noticed
        await engine.hanging(checks=3, every_s=0.01)
        noticed = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        before = work.count
        await eventually(lambda: work.count > before + 1000)
        assert not noticed
        work.has_work = False
        await stays_true_for(0.2, lambda: not noticed)
        tasks.cancel_scope.cancel()
