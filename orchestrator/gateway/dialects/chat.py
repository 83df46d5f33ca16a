"""OpenAI Chat Completions: streamed or not, tools, parallel tools, reasoning_content, usage.

The stream is made from the finished action: a role chunk at once, comments while nothing is there yet, then reasoning, content, one delta
with an index per tool call, the finish reason, usage if asked for, [DONE].
"""

import secrets
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from orchestrator.gateway.calls import Call
from orchestrator.gateway.dialects.base import KEEP_ALIVE_S, Incoming, agent_of, retries_of
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

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
}


class ChatDialect:
    """See the module."""

    name = "chat"
    paths: tuple[str, ...] = ("/v1/chat/completions",)

    def read(self, body: Any, headers: Mapping[str, str]) -> Incoming:
        if not isinstance(body, dict):
            raise bad_request("the body must be a JSON object")
        if body.get("n") not in (None, 1):
            raise bad_request("n must be 1: ask several times instead", "n")
        turns, parts_out = read_messages(body.get("messages"))
        tools, tools_out = read_tools(body.get("tools"))
        limits = [read_limit(body.get(key), key) for key in ("max_completion_tokens", "max_tokens")]
        given = [limit for limit in limits if limit is not None]
        request = CompletionRequest(
            turns=tuple(turns),
            tools=tools,
            digest=body_digest(self.name, body),
            agent=agent_of(headers),
            model=str(body.get("model") or ""),
            max_tokens=min(given) if given else None,
            stop=read_stop(body.get("stop")),
            calls_allowed=body.get("tool_choice") != "none",
            retries=retries_of(headers),
            left_out=parts_out + tools_out,
        )
        options = body.get("stream_options")
        usage = bool(options.get("include_usage")) if isinstance(options, dict) else False
        echo = {
            "model": str(body.get("model") or "policy"),
            "usage": usage,
            "id": f"chatcmpl-{secrets.token_hex(12)}",
        }
        return Incoming(request, bool(body.get("stream")), echo)

    def reply(self, incoming: Incoming, reply: Reply) -> Any:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.turn.text if reply.turn.text or not reply.turn.calls else None,
            "refusal": None,
        }
        if reply.turn.reasoning is not None:
            message["reasoning_content"] = reply.turn.reasoning
        if calls := _calls(reply):
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}
        return {
            "id": incoming.echo["id"],
            "object": "chat.completion",
            "created": int(time.time()),
            "model": incoming.echo["model"],
            "choices": [choice],
            "usage": _usage(reply),
        }

    async def stream(self, incoming: Incoming, call: Call) -> AsyncIterator[bytes]:
        created = int(time.time())

        def chunk(delta: Mapping[str, Any] | None, finish: str | None = None, usage: Any = None) -> bytes:
            value: dict[str, Any] = {
                "id": incoming.echo["id"],
                "object": "chat.completion.chunk",
                "created": created,
                "model": incoming.echo["model"],
                "choices": [],
            }
            if delta is not None:
                value["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
            if incoming.echo["usage"]:
                value["usage"] = usage
            return _event(value)

        yield chunk({"role": "assistant", "content": ""})
        while not await call.wait(KEEP_ALIVE_S):
            yield b": waiting for the policy\n\n"
        try:
            reply = await call.result()
        except Problem as problem:
            yield _event(self.error(problem))
            return
        if reply.turn.reasoning is not None:
            yield chunk({"reasoning_content": reply.turn.reasoning})
        if reply.turn.text:
            yield chunk({"content": reply.turn.text})
        for index, tool_call in enumerate(_calls(reply)):
            yield chunk({"tool_calls": [{"index": index, **tool_call}]})
        yield chunk({}, reply.finish_reason)
        if incoming.echo["usage"]:
            yield chunk(None, usage=_usage(reply))
        yield b"data: [DONE]\n\n"

    def error(self, problem: Problem) -> Any:
        kind = _TYPES.get(problem.status, "server_error")
        return {
            "error": {
                "message": problem.message,
                "type": kind,
                "param": problem.param,
                "code": problem.code,
            }
        }


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {"id": identifier, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for identifier, call in zip(reply.call_ids(), reply.turn.calls, strict=True)
    ]


def _usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
