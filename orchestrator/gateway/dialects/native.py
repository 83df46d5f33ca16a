"""The native route of white-box scaffolds: the chat form in, the parsed action with its step, usage and timings out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.gateway.dialects.base import Events, Incoming, Spoken, as_object, request_of
from orchestrator.gateway.dialects.errors import openai_error
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.requests import Reply, read_tools


class NativeDialect:
    """`{agent, call, messages, tools, max_tokens, stop, replace_reason}` → `gateway_client.Completion`. Never streamed.

    `call`, the number of the agent's call, is read by nobody: equal bodies are one call, others are not.
    """

    name = "native"
    paths: tuple[str, ...] = ("/native/complete",)
    counting: tuple[str, ...] = ()

    def read(self, body: Any, headers: Mapping[str, str]) -> Incoming:
        body = as_object(body)
        tools, left_out = read_tools(body.get("tools"))
        reason, agent = body.get("replace_reason"), body.get("agent")
        request = request_of(
            self.name,
            body,
            headers,
            Spoken(body.get("messages") or [], tools, left_out),
            limits=("max_tokens",),
            stop="stop",
            agent=agent[:64] if isinstance(agent, str) and agent else "main",
            reason=reason[:200] if isinstance(reason, str) and reason else None,
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
        }

    def events(self, incoming: Incoming) -> Events:
        raise AssertionError("the native route is never streamed")

    def counted(self, tokens: int) -> Any:
        raise AssertionError("this wire has no route for it")

    def error(self, problem: Problem) -> Any:
        return openai_error(problem)
