"""The names of sub-agents, and the reasons that are recorded with a completion."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from scaffolds.base import AgentLimits
from scaffolds.context.base import ContextPolicy
from scaffolds.context.drop_replies import DropReplies
from scaffolds.context.periodic_summary import PeriodicSummary
from scaffolds.context.sliding_window import SlidingWindow

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.limits import MAX_TOOL_CALLS
from orchestrator.contracts.marks import ParseStatus, ReplyFinish
from orchestrator.gateway_client import (
    BudgetExhausted,
    GatewayRefused,
    NativeLlm,
    RecordedCompletion,
    TokenUsage,
)
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.llm import Recorder

pytestmark = pytest.mark.anyio


class Noted:
    """The gateway's native route: answers, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, int, str | None]] = []
        self.counted: list[tuple[str, int]] = []
        self.refusal: Exception | None = None

    async def complete(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any],
        *,
        agent: str,
        replace_reason: str | None,
        **_: Any,
    ) -> RecordedCompletion:
        self.requests.append((agent, len(messages), replace_reason))
        return RecordedCompletion(
            content="x",
            reasoning=None,
            tool_calls=(),
            finish=ReplyFinish.STOP,
            parse=ParseStatus.OK,
            step=len(self.requests),
            usage=TokenUsage(10, 5),
            timings=StepTimings(),
        )

    async def count(self, messages: Sequence[Any], tools: Sequence[Any] = (), *, agent: str) -> int:
        self.counted.append((agent, len(messages)))
        if self.refusal is not None:
            raise self.refusal
        return len(messages)


def recorder(native: Noted, policy: ContextPolicy | None = None) -> Recorder:
    clocks = Clocks(timeout_s=10, stall_s=10, completion_s=10)
    return Recorder(
        native=cast(NativeLlm, native),
        clocks=clocks,
        limits=AgentLimits(turns=9, context=100, tool_timeout_s=1, timeout_s=10),
        context_policy=policy,
    )


def test_a_sub_agent_is_named_by_its_path_and_numbered_when_the_name_comes_again() -> None:
    main = recorder(Noted()).agent("main")
    paths = [main.ctx.spawn("scout"), main.ctx.spawn("scout"), main.ctx.spawn("scout").ctx.spawn("deep")]
    assert [agent.ctx.agent for agent in paths] == ["main/scout", "main/scout-2", "main/scout-3/deep"]


@pytest.mark.parametrize("name", ["", "a/b", "two words", "x" * 33])
def test_a_name_that_no_step_could_carry_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="write 1 to 32 letters"):
        recorder(Noted()).agent("main").ctx.spawn(name)


def test_a_path_that_a_step_would_cut_off_is_refused() -> None:
    agent = recorder(Noted()).agent("main").ctx.spawn("x" * 32)
    with pytest.raises(ValueError, match="is longer than 64 characters"):
        agent.ctx.spawn("y" * 32)


async def test_tool_calls_are_recorded_in_the_order_of_the_reply_whichever_ends_first() -> None:
    main = recorder(Noted()).agent("main")
    first, second = [await main.llm.complete([{"role": "user", "content": "x"}]) for _ in range(2)]
    with main.ctx.tool_call(second, 0, "bash"):
        with main.ctx.tool_call(first, 0, "bash"), main.ctx.tool_call(first, 1, "bash"):
            pass
    timed = cast(Any, main.ctx)._recorder.tool_calls
    assert [(call.step, call.call) for call in timed] == [(1, 0), (1, 1), (2, 0)]
    assert timed[0].start <= timed[1].start <= timed[1].end <= timed[0].end <= timed[2].end


async def test_as_many_tool_calls_are_recorded_as_rewards_count_as_all() -> None:
    main = recorder(Noted()).agent("main")
    reply = await main.llm.complete([{"role": "user", "content": "x"}])
    for call in range(MAX_TOOL_CALLS + 1):
        with main.ctx.tool_call(reply, call, "bash"):
            pass
    assert len(cast(Any, main.ctx)._recorder.tool_calls) == MAX_TOOL_CALLS


@pytest.mark.parametrize(
    ("exit_code", "size", "kept"),
    [(137, 5, (137, 5)), (-9, 0, (-9, 0)), (2**31, 2**63, (None, 2**63 - 1)), (None, -1, (None, 0))],
)
async def test_numbers_of_a_tool_call_that_no_row_holds_are_not_sent(
    exit_code: int | None, size: int, kept: tuple[int | None, int]
) -> None:
    main = recorder(Noted()).agent("main")
    reply = await main.llm.complete([{"role": "user", "content": "x"}])
    with main.ctx.tool_call(reply, 0, "b\ud800" * 99) as timer:
        timer.ended(exit_code, size)
    (timed,) = cast(Any, main.ctx)._recorder.tool_calls
    assert (timed.exit, timed.bytes) == kept and timed.name == "b?" * 49 + "b…"
    for call in (-1, 2**15):
        with pytest.raises(ValueError, match="number the calls of a reply from 0"):
            with main.ctx.tool_call(reply, call, "bash"):
                pass


async def test_a_reason_that_is_not_text_is_cleaned_before_it_is_sent() -> None:
    native = Noted()
    main = recorder(native).agent("main")
    main.ctx.replace(HISTORY, "half of a pair \ud83d")
    await main.llm.complete(HISTORY)
    assert native.requests == [("main", 3, "half of a pair ?")]


async def test_the_scaffolds_reason_comes_before_the_policys_and_counts_once() -> None:
    native = Noted()
    main = recorder(native, SlidingWindow(max_turns=2, keep_turns=1)).agent("main")
    helper = main.ctx.spawn("helper")
    history = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant", "user")]
    main.ctx.replace(history, "mine")
    await helper.llm.complete(history[:1])
    await main.llm.complete(history)
    await main.llm.complete([*history, {"role": "user", "content": "y"}])
    assert native.requests == [
        ("main/helper", 1, None),
        ("main", 3, "mine; sliding_window"),
        ("main", 4, None),
    ]
    with pytest.raises(ValueError, match="needs a reason"):
        main.ctx.replace(history, "")


async def test_the_scaffolds_reason_is_not_recorded_with_the_completions_of_a_policy() -> None:
    native = Noted()
    main = recorder(native, PeriodicSummary(max_turns=1, keep_turns=0)).agent("main")
    history = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    await main.llm.complete(main.ctx.replace(history, "mine"))
    assert [reason for _, _, reason in native.requests] == [None, "mine; periodic_summary"]


HISTORY = [{"role": role, "content": "x"} for role in ("user", "assistant", "tool")]


async def test_the_gateway_counts_the_state_before_it_is_sent_for_each_agent_apart() -> None:
    native = Noted()
    main = recorder(native, DropReplies(past=0.02)).agent("main")
    helper = main.ctx.spawn("helper")
    await main.llm.complete(HISTORY[:1])
    await main.llm.complete(HISTORY)
    await helper.llm.complete(HISTORY[:2])
    assert native.counted == [("main", 3), ("main/helper", 2)], "nothing is counted where nothing can go"
    assert native.requests == [("main", 1, None), ("main", 1, "drop_replies"), ("main/helper", 2, None)]


@pytest.mark.parametrize(
    "refusal", [GatewayRefused(413, "request_too_large", "no"), BudgetExhausted("context", "no")]
)
async def test_a_state_that_the_gateway_will_not_read_is_longer_than_the_context(refusal: Exception) -> None:
    native = Noted()
    native.refusal = refusal
    await recorder(native, DropReplies()).agent("main").llm.complete(HISTORY)
    assert native.requests == [("main", 1, "drop_replies")]


async def test_any_other_refusal_of_a_count_passes_through() -> None:
    native = Noted()
    native.refusal = GatewayRefused(400, "bad_request", "no")
    with pytest.raises(GatewayRefused):
        await recorder(native, DropReplies()).agent("main").llm.complete(HISTORY)
