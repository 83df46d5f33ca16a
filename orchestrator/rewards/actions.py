"""Steps of a rollout as rewards see them: the text of the policy and the results of its tools, without tokens, context or outcome."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.contracts.marks import MAIN_AGENT, ParseStatus


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an action. `arguments` is the JSON text from the policy."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAction:
    """One action as the gateway parsed it. `shows_tools`: whether its prompt shows tools; without any, calls are text, which the scaffold reads."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    parse: ParseStatus = ParseStatus.OK
    shows_tools: bool = True

    @classmethod
    def from_reply(
        cls, reply: Mapping[str, Any], parse: ParseStatus, *, shows_tools: bool = True
    ) -> "ParsedAction":
        """Read a recorded reply: {content, reasoning, tool_calls}. A call is {name, arguments}, plain or under `function`.

        Missing and null fields are empty. Arguments that were stored parsed are serialised as JSON again.
        """
        calls: list[ToolCall] = []
        for call in reply.get("tool_calls") or ():
            body = call.get("function", call)
            arguments = body.get("arguments")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            calls.append(ToolCall(str(body.get("name") or ""), text))
        return cls(
            content=str(reply.get("content") or ""),
            reasoning=str(reply.get("reasoning") or ""),
            tool_calls=tuple(calls),
            parse=parse,
            shows_tools=shows_tools,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """One tool execution of a step. Absent for black-box scaffolds, because their tools run out of the framework's sight."""

    name: str
    exit_code: int | None = None  # of the command, if it has one
    bytes: int | None = None  # of the output
    seconds: float | None = None
    recorded: bool = True  # False: the call comes after those that are recorded of an attempt


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step: its action, the results of its tools in the order of their calls, and the agent of the scaffold that took it."""

    action: ParsedAction
    results: tuple[ToolResult, ...] = ()
    agent: str = MAIN_AGENT
