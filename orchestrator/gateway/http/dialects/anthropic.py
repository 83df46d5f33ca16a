"""Anthropic Messages: streamed or not, tools, parallel tools, replayed thinking blocks, count_tokens.

A stream is message_start at once, ping events until the reply is there (comments are not enough for all clients), one content block
after the other, message_delta with the usage, message_stop; or an error event. The number of input tokens is known only with the reply.
"""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from orchestrator.contracts.marks import ReplyFinish
from orchestrator.gateway.http.dialects.anthropic_input import read_request, system_text
from orchestrator.gateway.http.dialects.base import (
    NOTHING,
    Incoming,
    Known,
    as_object,
    model_of,
    request_of,
    sse,
)
from orchestrator.gateway.http.dialects.errors import anthropic_error
from orchestrator.gateway.http.dialects.opaque_reasoning import sign_thinking
from orchestrator.gateway.messages.requests import Reply
from orchestrator.gateway.problems import Problem

Block = dict[str, Any]


class AnthropicDialect:
    """See the module."""

    name = "anthropic"
    paths: tuple[str, ...] = ("/v1/messages",)
    counting: tuple[str, ...] = ("/v1/messages/count_tokens",)

    def read(self, body: Any, headers: Mapping[str, str], known: Known = NOTHING) -> Incoming:
        body = as_object(body, self.name)
        # The form in which requests are compared.
        normalized = {**body, "system": system_text(body.get("system"))}
        messages = read_request(normalized, past=known.past)
        request = request_of(
            self.name,
            normalized,
            headers,
            messages,
            limits=("max_tokens",),
            stop="stop_sequences",
            past=known.past,
        )
        thinking = body.get("thinking") or {}
        echo = {
            "model": model_of(body),
            "id": f"msg_{secrets.token_hex(12)}",
            "thinking": thinking.get("type") != "disabled",
            "omitted": thinking.get("display") == "omitted",
        }
        return Incoming(request, bool(body.get("stream")), echo)

    def reply(self, incoming: Incoming, reply: Reply) -> Any:
        message = _message(incoming.echo, list(_blocks(incoming.echo, reply)), _usage(reply))
        return {**message, **_stop(reply)}

    def events(self, incoming: Incoming) -> "MessageEvents":
        return MessageEvents(incoming)

    def counted(self, tokens: int) -> Any:
        return {"input_tokens": tokens}

    def error(self, problem: Problem) -> Any:
        return anthropic_error(problem)


class MessageEvents:
    """The events of one reply."""

    def __init__(self, incoming: Incoming) -> None:
        self._echo = incoming.echo

    def opening(self) -> bytes:
        usage = {"input_tokens": 0, "output_tokens": 0}
        return _event("message_start", message=_message(self._echo, [], usage))

    def waiting(self) -> bytes:
        return _event("ping")

    def finished(self, reply: Reply) -> Iterator[bytes]:
        for index, block in enumerate(_blocks(self._echo, reply)):
            empty, deltas = _unfolded(block)
            yield _event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", delta=_stop(reply), usage=_usage(reply))
        yield _event("message_stop")

    def failed(self, problem: Problem) -> Iterator[bytes]:
        yield sse(anthropic_error(problem), "error")


def _event(kind: str, **values: Any) -> bytes:
    return sse({"type": kind, **values}, kind)


def _message(echo: Mapping[str, Any], content: list[Block], usage: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": echo["id"],
        "type": "message",
        "role": "assistant",
        "model": echo["model"],
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
    }


def _blocks(echo: Mapping[str, Any], reply: Reply) -> Iterator[Block]:
    """The finished action as content blocks. Thinking is shown unless the request disables it. Hidden thinking is still part of the recorded
    ids, which the next request continues."""
    turn = reply.turn
    reasoning = turn.reasoning if echo["thinking"] else None
    if reasoning is not None:
        text = "" if echo["omitted"] else reasoning
        yield {"type": "thinking", "thinking": text, "signature": sign_thinking(reply.step, reasoning)}
    if turn.text or (reasoning is None and not turn.calls):
        yield {"type": "text", "text": turn.text}
    for identifier, call in zip(reply.call_ids(), turn.calls, strict=True):
        yield {"type": "tool_use", "id": identifier, "name": call.name, "input": call.mapping()}


def _unfolded(block: Block) -> tuple[Block, list[dict[str, Any]]]:
    """A block as its first event shows it, and the deltas that fill it."""
    match block["type"]:
        case "thinking":
            thinking = {"type": "thinking_delta", "thinking": block["thinking"]}
            signed = {"type": "signature_delta", "signature": block["signature"]}
            deltas = [thinking, signed] if block["thinking"] else [signed]
            return {**block, "thinking": "", "signature": ""}, deltas
        case "tool_use":
            text = msgspec.json.encode(block["input"]).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
        case _:
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def _stop(reply: Reply) -> dict[str, Any]:
    """The stop reason in this wire's words."""
    if reply.turn.calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if reply.finish_reason is ReplyFinish.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if reply.stopped is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stopped}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(reply: Reply) -> dict[str, int]:
    return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}
