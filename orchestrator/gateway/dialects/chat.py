"""OpenAI Chat Completions: streamed or not, tools, parallel tools, reasoning_content, usage.

A stream is a role chunk at once, comments while nothing is there yet, then reasoning, content, one delta with an index per tool call,
the finish reason, usage if asked for, [DONE].
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.gateway.dialects.base import Incoming, Spoken, as_object, model_of, request_of, sse
from orchestrator.gateway.dialects.errors import openai_error
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.gateway.requests import Reply, read_tools

DONE = b"data: [DONE]\n\n"


class ChatDialect:
    """See the module."""

    name = "chat"
    paths: tuple[str, ...] = ("/v1/chat/completions",)
    counting: tuple[str, ...] = ()

    def read(self, body: Any, headers: Mapping[str, str]) -> Incoming:
        body = as_object(body)
        if body.get("n") not in (None, 1):
            raise bad_request("n must be 1: ask several times instead", "n")
        tools, left_out = read_tools(body.get("tools"))
        request = request_of(
            self.name,
            body,
            headers,
            Spoken(body.get("messages") or [], tools, left_out),
            limits=("max_completion_tokens", "max_tokens"),
            stop="stop",
        )
        options = body.get("stream_options")
        echo = {
            "model": model_of(body),
            "usage": bool(options.get("include_usage")) if isinstance(options, dict) else False,
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

    def events(self, incoming: Incoming) -> "ChatEvents":
        return ChatEvents(incoming)

    def counted(self, tokens: int) -> Any:
        raise AssertionError("this wire has no route for it")

    def error(self, problem: Problem) -> Any:
        return openai_error(problem)


class ChatEvents:
    """The chunks of one reply."""

    def __init__(self, incoming: Incoming) -> None:
        self._echo = incoming.echo
        self._created = int(time.time())

    def opening(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def waiting(self) -> bytes:
        return b": waiting for the policy\n\n"

    def finished(self, reply: Reply) -> Iterator[bytes]:
        if reply.turn.reasoning is not None:
            yield self._chunk({"reasoning_content": reply.turn.reasoning})
        if reply.turn.text:
            yield self._chunk({"content": reply.turn.text})
        for index, call in enumerate(_calls(reply)):
            yield self._chunk({"tool_calls": [{"index": index, **call}]})
        yield self._chunk({}, reply.finish_reason)
        if self._echo["usage"]:
            yield self._chunk(None, usage=_usage(reply))
        yield DONE

    def failed(self, problem: Problem) -> Iterator[bytes]:
        yield sse(openai_error(problem))
        yield DONE

    def _chunk(self, delta: Mapping[str, Any] | None, finish: str | None = None, usage: Any = None) -> bytes:
        value: dict[str, Any] = {
            "id": self._echo["id"],
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._echo["model"],
            "choices": [],
        }
        if delta is not None:
            value["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        if self._echo["usage"]:
            value["usage"] = usage
        return sse(value)


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
