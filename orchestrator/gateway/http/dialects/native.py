"""The native route of white-box scaffolds: the chat form in, the parsed action with its step, usage and timings out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.contracts.limits import MAX_AGENT, MAX_BRANCH_REASON
from orchestrator.contracts.marks import MAIN_AGENT
from orchestrator.contracts.quote import cut_to
from orchestrator.gateway.http.dialects.base import (
    NOTHING,
    ChatRequest,
    Events,
    Incoming,
    Known,
    as_object,
    request_of,
)
from orchestrator.gateway.http.dialects.errors import openai_error
from orchestrator.gateway.http.dialects.tools import read_tools
from orchestrator.gateway.messages.requests import Reply
from orchestrator.gateway.problems import Problem


class NativeDialect:
    """`{agent, call, messages, tools, max_tokens, stop, replace_reason}` → `gateway_client.RecordedCompletion`. Never streamed.

    `call` is the number of the agent's call. It makes different calls different bodies, since equal bodies are one call, and gives each its seed.
    """

    name = "native"
    paths: tuple[str, ...] = ("/native/complete",)
    counting: tuple[str, ...] = ("/native/count",)

    def read(self, body: Any, headers: Mapping[str, str], known: Known = NOTHING) -> Incoming:
        body = as_object(body, self.name)
        tools, left_out = read_tools(body.get("tools"))
        reason, agent = body.get("replace_reason"), body.get("agent")
        request = request_of(
            self.name,
            body,
            headers,
            ChatRequest(messages=body.get("messages") or [], tools=tools, left_out=left_out),
            limits=("max_tokens",),
            stop="stop",
            agent=cut_to(agent, MAX_AGENT) if isinstance(agent, str) and agent else MAIN_AGENT,
            reason=cut_to(reason, MAX_BRANCH_REASON) if isinstance(reason, str) and reason else None,
            past=known.past,
            number=body.get("call"),
        )
        return Incoming(request, False, {})

    def reply(self, incoming: Incoming, reply: Reply) -> Any:
        return {
            "content": reply.turn.text,
            "reasoning": reply.turn.reasoning,
            "tool_calls": [
                {"id": identifier, "name": call.name, "arguments": call.mapping()}
                for identifier, call in zip(reply.call_ids(), reply.turn.calls, strict=True)
            ],
            "finish": reply.finish_reason,
            "parse": reply.parse,
            "step": reply.step,
            "usage": {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens},
            "timings": msgspec.to_builtins(reply.timings),
            "replayed": reply.replayed,
            "generating": reply.generating,
        }

    def events(self, incoming: Incoming) -> Events:
        raise AssertionError("the native route is never streamed")

    def counted(self, tokens: int) -> Any:
        return {"tokens": tokens}

    def error(self, problem: Problem) -> Any:
        body = openai_error(problem)
        body["error"]["code"] = problem.code  # its client knows our own codes
        return body
