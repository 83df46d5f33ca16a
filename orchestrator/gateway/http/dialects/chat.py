"""OpenAI Chat Completions: streamed or not, tools, custom tools, legacy tools (functions), reasoning_content, usage.

A stream is a role chunk at once, comments until the reply is there, then reasoning, content, one delta with an index per tool call,
the finish reason, usage if requested, [DONE].
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.contracts.marks import ReplyFinish
from orchestrator.gateway.http.dialects.base import (
    NOTHING,
    ChatRequest,
    Incoming,
    Known,
    as_object,
    model_of,
    request_of,
    sse,
)
from orchestrator.gateway.http.dialects.errors import openai_error
from orchestrator.gateway.http.dialects.tools import read_tools
from orchestrator.gateway.messages.requests import INPUT, Reply, tool_list
from orchestrator.gateway.messages.turns import CanonicalCall
from orchestrator.gateway.problems import Problem, bad_request

DONE = b"data: [DONE]\n\n"


class ChatDialect:
    """See the module."""

    name = "chat"
    paths: tuple[str, ...] = ("/v1/chat/completions",)
    counting: tuple[str, ...] = ()

    def read(self, body: Any, headers: Mapping[str, str], known: Known = NOTHING) -> Incoming:
        body = as_object(body, self.name)
        legacy = body.get("functions") or None
        if legacy is not None and body.get("tools"):
            raise bad_request("send tools or functions, not both", "functions")
        tools, left_out = read_tools(_as_tools(legacy) if legacy is not None else body.get("tools"))
        request = request_of(
            self.name,
            body,
            headers,
            ChatRequest(messages=body.get("messages") or [], tools=tools, left_out=left_out),
            limits=("max_completion_tokens", "max_tokens"),
            stop="stop",
            past=known.past,
        )
        options = body.get("stream_options")
        echo = {
            "model": model_of(body),
            "usage": bool(options.get("include_usage")) if isinstance(options, dict) else False,
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "functions": legacy is not None,
            "custom": [
                tool["custom"]["name"]
                for tool in tool_list(body.get("tools"))
                if tool.get("type") == "custom"
            ],
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
        if calls := _calls(incoming.echo, reply):
            message |= (
                {"function_call": calls[0]["function"]}
                if incoming.echo["functions"]
                else {"tool_calls": calls}
            )
        finish = _finish(incoming.echo, reply)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
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
        for index, call in enumerate(_calls(self._echo, reply)):
            legacy = self._echo["functions"]
            yield self._chunk(
                {"function_call": call["function"]} if legacy else {"tool_calls": [{"index": index, **call}]}
            )
        yield self._chunk({}, _finish(self._echo, reply))
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


def _as_tools(functions: Any) -> list[dict[str, Any]]:
    """Convert OpenAI's legacy functions to tools."""
    if not isinstance(functions, list) or not all(isinstance(function, dict) for function in functions):
        raise bad_request("functions must be a list of objects", "functions")
    return [{"type": "function", "function": function} for function in functions]


def _finish(echo: Mapping[str, Any], reply: Reply) -> str:
    legacy = echo["functions"] and reply.finish_reason is ReplyFinish.TOOL_CALLS
    return "function_call" if legacy else reply.finish_reason


def _calls(echo: Mapping[str, Any], reply: Reply) -> list[dict[str, Any]]:
    return [
        _call(echo, identifier, call)
        for identifier, call in zip(reply.call_ids(), reply.turn.calls, strict=True)
    ]


def _call(echo: Mapping[str, Any], identifier: str, call: CanonicalCall) -> dict[str, Any]:
    """A call in the form of its tool. A call of a custom tool whose arguments are not one string is served as a function call."""
    arguments = call.mapping()
    if call.name in echo["custom"] and list(arguments) == [INPUT] and isinstance(arguments[INPUT], str):
        return {"id": identifier, "type": "custom", "custom": {"name": call.name, "input": arguments[INPUT]}}
    return {
        "id": identifier,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _usage(reply: Reply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
