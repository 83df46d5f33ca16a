"""The names of sub-agents, and the reasons that a completion is recorded with."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from scaffolds.base import AgentLimits
from scaffolds.context.sliding_window import SlidingWindow

from orchestrator.contracts.events import StepTimings
from orchestrator.flow.clocks import Clocks
from orchestrator.flow.llm import Recorder
from orchestrator.gateway_client import Completion, NativeLlm, Usage

pytestmark = pytest.mark.anyio


class Noted:
    """The gateway's native route: answers, and writes down what it was asked with."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str | None]] = []

    async def complete(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any],
        *,
        agent: str,
        replace_reason: str | None,
        **_: Any,
    ) -> Completion:
        self.asked.append((agent, len(messages), replace_reason))
        return Completion("x", None, (), "stop", "ok", len(self.asked), Usage(10, 5), StepTimings())


def recorder(native: Noted, policy: SlidingWindow | None = None) -> Recorder:
    clocks = Clocks(timeout_s=10, stall_s=10, completion_s=10)
    return Recorder(cast(NativeLlm, native), clocks, AgentLimits(9, 100, 1, 10), policy=policy)


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


async def test_the_scaffolds_reason_comes_before_the_policys_and_counts_once() -> None:
    native = Noted()
    main = recorder(native, SlidingWindow(max_turns=2, keep_turns=1)).agent("main")
    helper = main.ctx.spawn("helper")
    history = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant", "user")]
    main.ctx.replace(history, "mine")
    await helper.llm.complete(history[:1])
    await main.llm.complete(history)
    await main.llm.complete([*history, {"role": "user", "content": "y"}])
    assert native.asked == [("main/helper", 1, None), ("main", 3, "mine; sliding_window"), ("main", 4, None)]
    with pytest.raises(ValueError, match="needs a reason"):
        main.ctx.replace(history, "")
