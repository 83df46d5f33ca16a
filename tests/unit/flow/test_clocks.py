"""The clocks of an attempt. Times are small and real: what is tested is that a clock ends the work, or does not."""

import time
from dataclasses import dataclass, field
from typing import cast

import anyio
import pytest

from orchestrator.contracts.errors import AgentTimeout, InfraFailure
from orchestrator.flow.clocks import Clocks
from sandboxes.base import Process

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Program:
    """A program that printed something long ago, and has worked for this share of the time since."""

    last_output: float = 0.0
    works: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def cpu_s(self) -> float:
        return self.works * (time.monotonic() - self.began)


def clocks(*, timeout_s: float = 30.0, stall_s: float = 30.0, completion_s: float = 30.0) -> Clocks:
    return Clocks(timeout_s=timeout_s, stall_s=stall_s, completion_s=completion_s)


async def test_work_that_ends_in_time_returns_its_value_and_its_errors_pass_unwrapped() -> None:
    async def fine() -> int:
        return 7

    async def broken() -> int:
        raise KeyError("x")

    assert await clocks().run(fine) == 7
    with pytest.raises(KeyError):
        await clocks().run(broken)


async def test_the_wall_clock_ends_the_work_after_it_has_cleaned_up() -> None:
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            await anyio.sleep_forever()
        finally:
            cleaned = True

    with pytest.raises(AgentTimeout, match="wall clock"):
        await clocks(timeout_s=0.05).run(work)
    assert cleaned


async def test_time_that_the_platform_takes_for_a_completion_is_not_the_agent_s() -> None:
    watch = clocks(timeout_s=0.5)

    async def work() -> str:
        for _ in range(3):
            with watch.completion() as completion:
                await anyio.sleep(0.25)
                completion.generated(0.01)
        return "done"

    assert await watch.run(work) == "done" and watch.elapsed_s > 0.7


async def test_time_spent_generating_is_the_agent_s() -> None:
    watch = clocks(timeout_s=0.2)

    async def work() -> None:
        for _ in range(100):
            with watch.completion() as completion:
                await anyio.sleep(0.15)
                completion.generated(0.15)
            await anyio.sleep(0.01)

    with pytest.raises(AgentTimeout):
        await watch.run(work)
    assert watch.elapsed_s < 10


async def test_a_completion_that_stays_open_is_an_infrastructure_failure_and_no_stall() -> None:
    watch = clocks(stall_s=0.05, timeout_s=0.05, completion_s=0.3)

    async def work() -> None:
        with watch.completion():
            await anyio.sleep_forever()

    with pytest.raises(InfraFailure, match="a completion has been open"):
        await watch.run(work)


async def test_a_silent_program_is_the_agent_s_stall_and_a_silent_scaffold_the_platform_s() -> None:
    watch = clocks(stall_s=0.1)

    async def tool() -> None:
        watch.started(cast(Process, Program()))
        await anyio.sleep_forever()

    with pytest.raises(AgentTimeout, match="stall: a command"):
        await watch.run(tool)
    with pytest.raises(InfraFailure, match="stall: the scaffold"):
        await clocks(stall_s=0.1).run(anyio.sleep_forever)


async def test_cpu_time_however_little_per_look_is_no_stall() -> None:
    watch, program = clocks(stall_s=0.5), Program(works=0.025)

    async def work() -> str:
        watch.started(cast(Process, program))
        await anyio.sleep(1.0)
        return "done"

    assert await watch.run(work) == "done"


async def test_what_the_gateway_sees_of_a_black_box_counts_like_a_completion() -> None:
    watch = clocks(stall_s=0.3, timeout_s=0.5)

    async def work() -> str:
        watch.started(cast(Process, Program()))
        began = anyio.current_time()
        for calls in range(1, 7):
            watch.observed(waiting=True, calls=calls, queued_s=anyio.current_time() - began)
            await anyio.sleep(0.1)
        return "done"

    assert await watch.run(work) == "done"
    late = clocks(timeout_s=0.1)

    async def greedy() -> None:
        for calls in range(100):
            late.observed(waiting=True, calls=calls, queued_s=0.0)
            await anyio.sleep(0.02)

    with pytest.raises(AgentTimeout):
        await late.run(greedy)


async def test_a_completion_that_the_gateway_holds_is_waited_for_and_one_that_hangs_is_not() -> None:
    """All rollout servers are away for longer than a completion may take: that is no reason to end anything."""
    servers, asked, began = anyio.Event(), 0, anyio.current_time()

    async def held() -> float:
        nonlocal asked
        asked += 1
        return 0.0 if servers.is_set() else anyio.current_time() - began

    watch = Clocks(timeout_s=300.0, stall_s=300.0, completion_s=0.1, held=held)

    async def work() -> str:
        with watch.completion():
            await servers.wait()
        with watch.completion():
            await anyio.sleep_forever()
        return "unreachable"

    async def away() -> None:
        while asked < 3:
            await anyio.sleep(0.01)
        servers.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(away)
        with anyio.fail_after(60), pytest.raises(InfraFailure, match="a completion has been open"):
            await watch.run(work)
    assert asked > 3 and anyio.current_time() - began > 0.5


async def test_what_replayed_completions_had_taken_is_the_agent_s_time_each_once() -> None:
    own = clocks(timeout_s=30.0)

    async def work() -> None:
        own.replayed(20.0)
        own.replayed(20.0)
        own.replayed(31.0)
        await anyio.sleep_forever()

    with anyio.fail_after(20), pytest.raises(AgentTimeout):
        await own.run(work)
    assert 31.0 <= own.elapsed_s < 51.0
