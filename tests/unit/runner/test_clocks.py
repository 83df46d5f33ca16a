"""The clocks of an attempt, in virtual time: the tests show whether a clock ends the work, and when."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest
from scaffolds.base import AgentLimits
from scaffolds.context.drop_replies import DropReplies

from orchestrator.contracts.errors import AgentTimeout, Hung, InfraFailure
from orchestrator.gateway_client import Activity, BudgetExhausted, NativeLlm, Seal
from orchestrator.runner import clocks as clocks_module
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.llm import AgentLlm, Recorder
from sandboxes.base import Process
from tests import virtual_time
from tests.virtual_time import passes
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(monkeypatch: pytest.MonkeyPatch) -> tuple[str, Mapping[str, Any]]:
    virtual_time.show(monkeypatch, clocks_module)
    return virtual_time.BACKEND


@dataclass(eq=False)
class Program:
    """A program that printed something long ago, and has worked for this share of the time since."""

    last_output: float = 0.0
    works: float = 0.0
    began: float = field(default_factory=anyio.current_time)

    def cpu_s(self) -> float:
        return self.works * (anyio.current_time() - self.began)


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
    watch = clocks(timeout_s=0.4)

    async def work() -> str:
        for _ in range(3):
            with watch.completion() as completion:
                await passes(0.25)
                completion.generated((0.01, 0.0))
        return "done"

    assert await watch.run(work) == "done"
    assert watch.elapsed_s == pytest.approx(0.75) and watch.own_s == pytest.approx(0.03)


async def test_time_spent_generating_is_the_agent_s() -> None:
    watch = clocks(timeout_s=0.2)

    async def work() -> None:
        for _ in range(100):
            with watch.completion() as completion:
                await passes(0.15)
                completion.generated((0.15, 0.0))
            await passes(0.01)

    with pytest.raises(AgentTimeout):
        await watch.run(work)
    assert watch.own_s == pytest.approx(
        0.31, abs=0.02
    )  # once it is known whose time the second completion was


async def test_a_completion_that_stays_open_is_an_infrastructure_failure_and_no_stall() -> None:
    watch = clocks(stall_s=0.05, timeout_s=0.05, completion_s=0.3)

    async def work() -> None:
        with watch.completion():
            await anyio.sleep_forever()

    with pytest.raises(InfraFailure, match="a completion has been open"):
        await watch.run(work)


async def test_a_clock_has_open_completions_cut_off_before_it_ends_the_work_and_their_time_is_the_agent_s() -> (
    None
):
    over, ended = anyio.Event(), ""

    async def cut_off() -> None:
        assert not ended
        over.set()
        await passes(0.1)

    watch = Clocks(timeout_s=30.0, stall_s=30.0, completion_s=2.0, cut_off=cut_off)

    async def work() -> None:
        nonlocal ended
        try:
            with watch.completion():
                await over.wait()
                raise InfraFailure("the reply was cut off")
        finally:
            ended = "by the gateway's answer"

    with pytest.raises(Hung, match="a completion has been open"):
        await watch.run(work)
    assert ended and watch.own_s == pytest.approx(2.0, abs=0.15)


@pytest.mark.parametrize("answers", [False, True])
async def test_an_agent_that_goes_on_after_its_reply_was_cut_off_does_not_outlive_its_clock(
    answers: bool,
) -> None:
    async def cut_off() -> None:
        await passes(0.01 if answers else 0.2)

    watch = Clocks(timeout_s=0.1, stall_s=30.0, completion_s=30.0, cut_off=cut_off)

    async def work() -> str:
        await passes(0.15)
        return "an answer that came too late"

    with pytest.raises(AgentTimeout, match="wall clock"):
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


async def test_an_attempt_that_uses_cpu_time_however_little_is_not_stalled() -> None:
    watch, program = clocks(stall_s=0.5), Program(works=0.025)

    async def work() -> str:
        watch.started(cast(Process, program))
        await passes(1.0)
        return "done"

    assert await watch.run(work) == "done"


async def test_what_the_gateway_sees_of_a_black_box_counts_like_a_completion() -> None:
    watch = clocks(stall_s=0.3, timeout_s=0.5)

    async def work() -> str:
        watch.started(cast(Process, Program()))
        began = anyio.current_time()
        for calls in range(1, 7):
            watch.observed(Activity(in_flight=1, calls=calls, queued_s=anyio.current_time() - began))
            await passes(0.1)
        return "done"

    assert await watch.run(work) == "done"
    late = clocks(timeout_s=0.1)

    async def greedy() -> None:
        for calls in range(100):
            late.observed(Activity(in_flight=1, calls=calls, queued_s=0.0))
            await passes(0.02)

    with pytest.raises(AgentTimeout):
        await late.run(greedy)


async def test_a_completion_that_the_gateway_holds_is_waited_for_and_one_that_hangs_is_not() -> None:
    """All rollout servers are away for longer than a completion may take: that is not a reason to end anything."""
    servers, requests, began = anyio.Event(), 0, anyio.current_time()

    async def held() -> float:
        nonlocal requests
        requests += 1
        return 0.0 if servers.is_set() else anyio.current_time() - began

    watch = Clocks(timeout_s=300.0, stall_s=300.0, completion_s=0.1, held=held)

    async def work() -> str:
        with watch.completion():
            await servers.wait()
        with watch.completion():
            await anyio.sleep_forever()
        return "unreachable"

    async def away() -> None:
        await eventually(lambda: requests >= 3)
        servers.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(away)
        with anyio.fail_after(60), pytest.raises(InfraFailure, match="a completion has been open"):
            await watch.run(work)
    assert requests > 3 and anyio.current_time() - began > 0.5


async def test_what_replayed_completions_had_taken_is_the_agent_s_time_each_once() -> None:
    own = clocks(timeout_s=30.0)

    async def work() -> None:
        own.replayed(20.0)
        own.replayed(20.0)
        own.replayed(31.0)
        await anyio.sleep_forever()

    with anyio.fail_after(20), pytest.raises(AgentTimeout):
        await own.run(work)
    assert own.elapsed_s == pytest.approx(31.0)


def seal(waiting_s: float, generation_s: float) -> Seal:
    return Seal(
        steps=0,
        last_idx=-1,
        digest="",
        marks=(),
        queued_s=waiting_s,
        calls=0,
        exhausted=None,
        sampled_tokens=0,
        generation_s=generation_s,
    )


async def test_completions_at_the_same_time_are_waited_for_once_and_generated_once() -> None:
    """Six at a server of one slot: the running one counts as generated for all of them."""
    watch = clocks(timeout_s=0.5)

    async def work() -> None:
        async def call(number: int) -> None:
            with watch.completion() as completion:
                await passes(0.1 * (number + 1))
                completion.generated((0.1, 0.0))

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(call, number)
        await anyio.sleep_forever()

    with anyio.fail_after(20), pytest.raises(AgentTimeout):
        await watch.run(work)
    assert watch.waiting_s == pytest.approx(0.0, abs=1e-6) and watch.generation_s == pytest.approx(0.6)
    assert watch.own_s == pytest.approx(watch.elapsed_s) == pytest.approx(0.6)


async def test_a_completion_that_is_held_while_tools_work_gains_neither_time_nor_a_later_deadline() -> None:
    watch = clocks(timeout_s=0.3)

    async def work() -> None:
        async def hold() -> None:
            with watch.completion():
                await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            with watch.tool():
                await anyio.sleep_forever()

    with anyio.fail_after(20), pytest.raises(AgentTimeout):
        await watch.run(work)
    assert watch.own_s == pytest.approx(0.3, abs=0.002) and watch.waiting_s == 0.0


async def test_overlapping_completions_do_not_count_as_one_that_stays_open() -> None:
    watch = clocks(completion_s=0.4)

    async def work() -> str:
        async def call(number: int) -> None:
            await passes(0.1 * number)
            with watch.completion():
                await passes(0.15)

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(call, number)
        return "done"

    assert await watch.run(work) == "done"


async def test_the_time_of_a_black_box_is_at_least_its_generation_and_its_cpu_time() -> None:
    watch = clocks()

    async def work() -> None:
        program = Program(works=0.5)
        watch.started(cast(Process, program))
        await passes(0.6)
        watch.ended(cast(Process, program))

    await watch.run(work)
    watch.observed(Activity(in_flight=1, calls=6, queued_s=17.0, instance="a", generation_s=0.1))
    watch.sealed(seal(17.0, 0.1))
    assert watch.own_s == pytest.approx(0.3) and watch.waiting_s <= watch.elapsed_s
    watch.sealed(seal(17.0, 0.5))
    assert watch.own_s == pytest.approx(0.5)


async def test_programs_that_work_on_many_cores_at_once_take_no_more_than_the_time_that_they_took() -> None:
    watch = clocks()

    async def work() -> None:
        program = Program(works=8.0)
        watch.started(cast(Process, program))
        await passes(0.3)
        watch.ended(cast(Process, program))
        await passes(0.7)

    await watch.run(work)
    watch.sealed(seal(0.7, 0.0))
    assert watch.own_s == pytest.approx(0.3)


@pytest.mark.parametrize("refused", [False, True])
async def test_the_time_of_a_token_count_is_the_platforms(refused: bool) -> None:
    """A count generates nothing, however slow the gateway is."""

    class Slow:
        async def count(self, *_: object, **__: object) -> int:
            await passes(5.0)
            if refused:
                raise BudgetExhausted("context", "no")
            return 1

    watch = clocks()
    limits = AgentLimits(turns=9, context=100, tool_timeout_s=1, timeout_s=30)
    recorder = Recorder(
        native=cast(NativeLlm, Slow()), clocks=watch, limits=limits, context_policy=DropReplies()
    )
    model = cast(AgentLlm, recorder.agent("main").llm)
    assert await model._length([{"role": "user", "content": "x"}], ()) == (101 if refused else 1)
    assert watch.waiting_s == pytest.approx(5.0, abs=0.1) and watch.generation_s == 0
    assert watch.own_s == pytest.approx(0.0, abs=0.1)


async def test_a_black_box_that_works_while_its_calls_queue_meets_its_deadline() -> None:
    watch = clocks(timeout_s=0.4)

    async def work() -> None:
        watch.started(cast(Process, Program(works=1.0)))
        for calls in range(1, 10_000):
            watch.observed(Activity(in_flight=6, calls=calls, queued_s=watch.elapsed_s))
            await passes(0.02)

    with anyio.fail_after(20), pytest.raises(AgentTimeout, match="wall clock"):
        await watch.run(work)


async def test_the_report_of_a_gateway_before_its_restart_still_counts() -> None:
    watch = clocks()

    async def work() -> None:
        watch.observed(Activity(in_flight=1, calls=1, queued_s=0.1, instance="a", generation_s=0.1))
        await passes(0.5)
        watch.observed(Activity(in_flight=0, calls=0, queued_s=0.0, instance="b"))
        await passes(0.5)

    await watch.run(work)
    watch.sealed(seal(0.2, 0.05))
    assert watch.waiting_s == pytest.approx(0.8) and watch.generation_s == pytest.approx(0.15)
