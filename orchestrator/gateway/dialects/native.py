"""The native route of white-box scaffolds: the chat form in, the parsed action with its step, usage and timings out."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from orchestrator.gateway.calls import Call
from orchestrator.gateway.dialects.base import Incoming, retries_of
from orchestrator.gateway.dialects.chat import ChatDialect
from orchestrator.gateway.messages import read_messages
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.gateway.requests import (
    CompletionRequest,
    Reply,
    body_digest,
    read_limit,
    read_stop,
    read_tools,
)


class NativeDialect:
    """`{agent, messages, tools, max_tokens, stop, replace_reason}` → `gateway_client.Completion`. Never streamed."""

    name = "native"
    paths: tuple[str, ...] = ("/native/complete",)

    def read(self, body: Any, headers: Mapping[str, str]) -> Incoming:
        if not isinstance(body, dict):
            raise bad_request("the body must be a JSON object")
        turns, parts_out = read_messages(body.get("messages"))
        tools, tools_out = read_tools(body.get("tools"))
        reason, agent = body.get("replace_reason"), body.get("agent")
        request = CompletionRequest(
            turns=tuple(turns),
            tools=tools,
            digest=body_digest(self.name, body),
            agent=agent[:64] if isinstance(agent, str) and agent else "main",
            max_tokens=read_limit(body.get("max_tokens"), "max_tokens"),
            stop=read_stop(body.get("stop")),
            retries=retries_of(headers),
            reason=reason[:200] if isinstance(reason, str) and reason else None,
            left_out=parts_out + tools_out,
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
        }

    async def stream(self, incoming: Incoming, call: Call) -> AsyncIterator[bytes]:
        yield msgspec.json.encode(self.reply(incoming, await call.result()))

    def error(self, problem: Problem) -> Any:
        return ChatDialect().error(problem)
