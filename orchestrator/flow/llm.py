"""The white box's hands: `llm` (the gateway's native route) and `ctx` (context management, sub-agents, tool timings).

One `Recorder` per attempt collects the tool calls of all its agents; the completions are recorded by the gateway. Agents of an attempt may
work at the same time: each has a history and a context policy of its own, the session with its budgets is one.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from scaffolds.base import Agent, AgentLimits, Message, Tool
from scaffolds.base import Completion as ScaffoldCompletion
from scaffolds.context.base import ContextPolicy

from orchestrator.contracts.events import ToolCallTimed
from orchestrator.flow.clocks import Clocks
from orchestrator.flow.managed import ManagedHistory
from orchestrator.gateway_client import Completion, NativeLlm
from orchestrator.pool.clean import clean

MAX_TOOL_CALLS = 1000  # recorded per attempt: the result must fit one message
MAX_AGENT = 64  # characters of an agent's path, as steps record it

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")


@dataclass(slots=True)
class Recorder:
    """What is shared by all agents of one attempt."""

    native: NativeLlm
    clocks: Clocks
    limits: AgentLimits
    tool_calls: list[ToolCallTimed] = field(default_factory=list)
    policy: ContextPolicy | None = None
    agents: set[str] = field(default_factory=lambda: {"main"})

    def agent(self, name: str) -> Agent:
        """The llm and ctx of one agent."""
        context = AgentContext(self, name)
        return Agent(AgentLlm(self, context), context)


class AgentContext:
    """Implements `scaffolds.base.Context` for one agent."""

    def __init__(self, recorder: Recorder, agent: str) -> None:
        self._recorder = recorder
        self._agent = agent
        self.replaced: str | None = None  # why the history of the next completion is another one

    def take_reason(self) -> str | None:
        """What `replace` was told since the last completion began."""
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
        self.replaced = reason
        return list(messages)

    def spawn(self, name: str) -> Agent:
        if not _NAME.fullmatch(name):
            raise ValueError(f"ctx.spawn({name!r}): write 1 to 32 letters, digits, '_', '.' and '-'")
        path, number = f"{self._agent}/{name}", 2
        while path in self._recorder.agents:
            path, number = f"{self._agent}/{name}-{number}", number + 1
        if len(path) > MAX_AGENT:
            raise ValueError(
                f"ctx.spawn({name!r}): the path {path} is longer than {MAX_AGENT} characters: spawn less deep, or shorten the names"
            )
        self._recorder.agents.add(path)
        return self._recorder.agent(path)

    @contextmanager
    def tool_call(self, reply: ScaffoldCompletion, call: int, name: str) -> Iterator["Timer"]:
        recorder, timer = self._recorder, Timer()
        start = recorder.clocks.elapsed_s
        try:
            yield timer
        finally:
            if len(recorder.tool_calls) < MAX_TOOL_CALLS:
                recorder.tool_calls.append(
                    ToolCallTimed(
                        step=reply.step,
                        call=call,
                        name=clean(name)[:100],
                        start=start,
                        end=recorder.clocks.elapsed_s,
                        exit=timer.exit_code,
                        bytes=timer.output_bytes,
                    )
                )


class Timer:
    """Implements `scaffolds.base.ToolTimer`."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.output_bytes = 0

    def ended(self, exit_code: int | None, output_bytes: int) -> None:
        self.exit_code, self.output_bytes = exit_code, output_bytes


class AgentLlm:
    """Implements `scaffolds.base.Llm` for one agent."""

    def __init__(self, recorder: Recorder, context: AgentContext) -> None:
        self._recorder = recorder
        self._context = context
        policy = recorder.policy
        self._managed = None if policy is None else ManagedHistory(policy, recorder.limits.context)

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Completion:
        reason: str | None = None
        if self._managed is not None:
            messages, reason = await self._managed.fit(messages, partial(self._complete, tools=tools))
        reply = await self._complete(messages, tools, reason=reason, max_tokens=max_tokens, stop=stop)
        if self._managed is not None:
            self._managed.used = reply.usage.prompt_tokens + reply.usage.completion_tokens
        return reply

    async def _complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        *,
        reason: str | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Completion:
        """One recorded step. `reason`: why a policy rewrote the history; the scaffold's own reason comes first."""
        reasons = [why for why in (self._context.take_reason(), reason) if why]
        with self._recorder.clocks.completion() as open_completion:
            began = time.monotonic()
            reply = await self._recorder.native.complete(
                messages,
                tools,
                agent=self._context.agent,
                max_tokens=max_tokens,
                stop=stop,
                replace_reason="; ".join(reasons) or None,
            )
            open_completion.generated(min(reply.timings.generation, time.monotonic() - began))
        if reply.replayed:
            self._recorder.clocks.replayed(self._recorder.clocks.replayed_s + reply.timings.generation)
        return reply
