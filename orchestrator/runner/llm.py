"""The interface of a white box: `llm` (the gateway's native route) and `ctx` (context management, sub-agents, tool timings).

One `Recorder` per attempt collects the tool calls of all its agents; the gateway records the completions. Agents of an attempt may work
concurrently: each has its own history and context policy; they share one session and its budgets.
"""

import bisect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from scaffolds.base import Agent, AgentLimits, Message, Tool
from scaffolds.base import Completion as ScaffoldCompletion
from scaffolds.context.base import ContextPolicy

from orchestrator.contracts.events import ToolCallTimed
from orchestrator.contracts.limits import MAX_AGENT, MAX_TOOL, MAX_TOOL_CALLS
from orchestrator.contracts.marks import MAIN_AGENT
from orchestrator.contracts.numbers import INT2, INT4, INT8
from orchestrator.contracts.quote import cut_to, quoted
from orchestrator.gateway_client import BudgetExhausted, GatewayRefused, NativeLlm, RecordedCompletion
from orchestrator.pool.sanitize import clean
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.context import ManagedHistory
from orchestrator.trajectory.waiting import Served

TOO_LARGE = 413  # HTTP: the body is larger than the gateway reads

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")


@dataclass(slots=True, kw_only=True)
class Recorder:
    """State shared by all agents of one attempt."""

    native: NativeLlm
    clocks: Clocks
    limits: AgentLimits
    tool_calls: list[ToolCallTimed] = field(default_factory=list)
    context_policy: ContextPolicy | None = None
    agents: set[str] = field(default_factory=lambda: {MAIN_AGENT})
    served: Served = field(default_factory=Served)  # completions that a resume served again

    def agent(self, name: str) -> Agent:
        """The llm and ctx of one agent."""
        context = AgentContext(self, name)
        return Agent(AgentLlm(self, context), context)


class AgentContext:
    """Implements `scaffolds.base.Context` for one agent."""

    def __init__(self, recorder: Recorder, agent: str) -> None:
        self._recorder = recorder
        self._agent = agent
        self.replaced: str | None = None  # why the history of the next completion differs

    def take_reason(self) -> str | None:
        """The reason passed to `replace` since the start of the last completion."""
        reason, self.replaced = self.replaced, None
        return reason

    @property
    def agent(self) -> str:
        return self._agent

    @property
    def limits(self) -> AgentLimits:
        return self._recorder.limits

    def replace(self, messages: Sequence[Message], reason: str) -> list[Message]:
        if not reason:
            raise ValueError("ctx.replace needs a reason: it is recorded on the step")
        self.replaced = clean(reason)
        return list(messages)

    def spawn(self, name: str) -> Agent:
        if not _NAME.fullmatch(name):
            raise ValueError(f"ctx.spawn({quoted(name)}): write 1 to 32 letters, digits, '_', '.' and '-'")
        path, number = f"{self._agent}/{name}", 2
        while path in self._recorder.agents:
            path, number = f"{self._agent}/{name}-{number}", number + 1
        if len(path) > MAX_AGENT:
            raise ValueError(
                f"ctx.spawn({quoted(name)}): the path {path} is longer than {MAX_AGENT} characters: spawn less deep, or shorten the names"
            )
        self._recorder.agents.add(path)
        return self._recorder.agent(path)

    @contextmanager
    def tool_call(self, reply: ScaffoldCompletion, call: int, name: str) -> Iterator["Timer"]:
        if not 0 <= call <= INT2:
            raise ValueError(
                f"ctx.tool_call: call {quoted(call)} does not exist: number the calls of a reply from 0"
            )
        recorder, timer = self._recorder, Timer()
        start = recorder.clocks.attempt_s
        try:
            with recorder.clocks.tool():
                yield timer
        finally:
            if len(recorder.tool_calls) < MAX_TOOL_CALLS:
                bisect.insort(  # the calls of one reply end in any order
                    recorder.tool_calls,
                    ToolCallTimed(
                        step=reply.step,
                        call=call,
                        name=cut_to(clean(name), MAX_TOOL),
                        start=start,
                        end=recorder.clocks.attempt_s,
                        exit=timer.exit_code,
                        bytes=timer.output_bytes,
                    ),
                    key=lambda timed: (timed.step, timed.call),
                )


class Timer:
    """Implements `scaffolds.base.ToolTimer`."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.output_bytes = 0

    def ended(self, exit_code: int | None, output_bytes: int) -> None:
        # A number that no row holds would end the attempt.
        self.exit_code = None if exit_code is None or abs(exit_code) > INT4 else exit_code
        self.output_bytes = min(max(0, output_bytes), INT8)


class AgentLlm:
    """Implements `scaffolds.base.Llm` for one agent."""

    def __init__(self, recorder: Recorder, context: AgentContext) -> None:
        self._recorder = recorder
        self._context = context
        context_policy = recorder.context_policy
        self._managed = (
            None if context_policy is None else ManagedHistory(context_policy, recorder.limits.context)
        )

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> RecordedCompletion:
        # The scaffold's reason comes first, and belongs to no completion that the policy requests.
        reasons = [self._context.take_reason()]
        if self._managed is not None:
            ask, length = partial(self._complete, tools=tools), partial(self._length, tools=tools)
            messages, rewritten_by = await self._managed.fit(messages, ask, length)
            reasons.append(rewritten_by)
        reason = "; ".join(filter(None, reasons)) or None
        return await self._complete(messages, tools, reason=reason, max_tokens=max_tokens, stop=stop)

    async def _length(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """Tokens of the state for `messages`. If the gateway refuses the state for its size: one more than the limit."""
        try:
            with self._recorder.clocks.completion() as counting:
                try:
                    return await self._recorder.native.count(messages, tools, agent=self._context.agent)
                finally:
                    counting.generated()  # nothing: the whole time is the gateway's
        except (BudgetExhausted, GatewayRefused) as refused:
            if isinstance(refused, GatewayRefused) and refused.status != TOO_LARGE:
                raise
            return self._recorder.limits.context + 1

    async def _complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        *,
        reason: str | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> RecordedCompletion:
        """One recorded step. `reason`: why the history was rewritten."""
        with self._recorder.clocks.completion() as open_completion:
            reply = await self._recorder.native.complete(
                messages,
                tools,
                agent=self._context.agent,
                max_tokens=max_tokens,
                stop=stop,
                replace_reason=reason,
            )
            open_completion.generated(*_generating(reply))
        if reply.replayed:
            self._recorder.served.add(reply.timings.ended, reply.timings.generation)
            self._recorder.clocks.replayed(self._recorder.served.seconds)
        return reply


def _generating(reply: RecordedCompletion) -> tuple[tuple[float, float], ...]:
    """When a reply was generated, in seconds before it. If the gateway gives no times, the generation counts as directly before the reply."""
    if reply.replayed:
        return ()
    if reply.generating or not reply.timings.generation:
        return reply.generating or ()
    return ((reply.timings.generation, 0.0),)
