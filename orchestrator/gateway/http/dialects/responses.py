"""OpenAI Responses: streamed or not, function, freeform and typed tools, namespaces, replayed reasoning items.

A request brings the whole conversation, or refers to objects that this session was served (`stored.py`).
A stream is response.created and response.in_progress at once,
response.in_progress again as a keep-alive (clients that count events do not count comments), the items of the finished action, and
always one terminal event: response.completed, incomplete or failed.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.contracts.marks import ReplyFinish
from orchestrator.gateway.http.dialects.base import (
    NOTHING,
    Incoming,
    Known,
    as_object,
    model_of,
    request_of,
    sse,
)
from orchestrator.gateway.http.dialects.errors import CONTEXT_LENGTH, openai_error
from orchestrator.gateway.http.dialects.opaque_reasoning import keep_reasoning
from orchestrator.gateway.http.dialects.responses_input import read_request
from orchestrator.gateway.http.dialects.tool_names import WireName
from orchestrator.gateway.messages.requests import INPUT, Reply
from orchestrator.gateway.messages.typed_calls import PREFIXES, item_of
from orchestrator.gateway.problems import Problem

Item = dict[str, Any]


class ResponsesDialect:
    """See the module."""

    name = "responses"
    paths: tuple[str, ...] = ("/v1/responses",)
    counting: tuple[str, ...] = ("/v1/responses/input_tokens",)

    def read(self, body: Any, headers: Mapping[str, str], known: Known = NOTHING) -> Incoming:
        body = as_object(body, self.name)
        messages, names = read_request(body, known)
        request = request_of(
            self.name,
            body,
            headers,
            messages,
            limits=("max_output_tokens",),
            stop="stop",
            past=known.past or body.get("previous_response_id") is not None,
        )
        return Incoming(request, bool(body.get("stream")), _echo(body, names.wire))

    def reply(self, incoming: Incoming, reply: Reply) -> Any:
        echo = incoming.echo
        return finished_response(echo, reply, list(output_items(reply, echo["names"])))

    def events(self, incoming: Incoming) -> "ResponseEvents":
        return ResponseEvents(incoming.echo)

    def counted(self, tokens: int) -> Any:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def error(self, problem: Problem) -> Any:
        return openai_error(problem)


def unread_events() -> "ResponseEvents":
    """The events of a request whose body was not read."""
    return ResponseEvents(_echo({}, {}))


def _echo(body: Mapping[str, Any], names: Mapping[str, WireName]) -> dict[str, Any]:
    """Values that the reply repeats."""
    return {
        "model": model_of(body),
        "id": f"resp_{secrets.token_hex(16)}",
        "created": int(time.time()),
        "names": names,
        "body": body,
    }


class ResponseEvents:
    """The numbered events of one reply."""

    def __init__(self, echo: Mapping[str, Any]) -> None:
        self._echo = echo
        self._number = 0

    def opening(self) -> bytes:
        response = _response(self._echo, "in_progress", [])
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def waiting(self) -> bytes:
        return self._event("response.in_progress", response=_response(self._echo, "in_progress", []))

    def finished(self, reply: Reply) -> Iterator[bytes]:
        items = list(output_items(reply, self._echo["names"]))
        for at, item in enumerate(items):
            yield self._event("response.output_item.added", output_index=at, item=_started(item))
            yield from self._content(at, item)
            yield self._event("response.output_item.done", output_index=at, item=item)
        response = finished_response(self._echo, reply, items)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, problem: Problem) -> Iterator[bytes]:
        response = _response(self._echo, "failed", [])
        code = "invalid_prompt" if problem.status < 500 else "server_error"
        if problem.full_context:
            # As OpenAI ends such a stream; its package raises at the first of the two events.
            error = openai_error(problem)["error"]
            flat = {key: error[key] for key in ("code", "message", "param")}
            yield self._event("error", **flat, error=error)
            code = CONTEXT_LENGTH
        response["error"] = {"code": code, "message": problem.message, "type": problem.code}
        yield self._event("response.failed", response=response)

    def _content(self, at: int, item: Item) -> Iterator[bytes]:
        """The complete content of an item, since the action is finished."""
        position = {"item_id": item["id"], "output_index": at}
        match item["type"]:
            case "message" | "reasoning":
                (part,) = item["content"]
                kind = part["type"]
                extra: Item = {"logprobs": []} if kind == "output_text" else {}
                position["content_index"] = 0
                yield self._event("response.content_part.added", **position, part={**part, "text": ""})
                yield self._event(f"response.{kind}.delta", **position, delta=part["text"], **extra)
                yield self._event(f"response.{kind}.done", **position, text=part["text"], **extra)
                yield self._event("response.content_part.done", **position, part=part)
            case "function_call":
                kind, content = "response.function_call_arguments", item["arguments"]
                yield self._event(f"{kind}.delta", **position, delta=content)
                yield self._event(f"{kind}.done", **position, arguments=content, name=item["name"])
            case "custom_tool_call":
                kind, content = "response.custom_tool_call_input", item["input"]
                yield self._event(f"{kind}.delta", **position, delta=content)
                yield self._event(f"{kind}.done", **position, input=content)
            case "shell_call":
                kind = "response.shell_call_command"
                for number, command in enumerate(item["action"]["commands"]):
                    command_position = {"output_index": at, "command_index": number}
                    yield self._event(f"{kind}.added", **command_position, command="")
                    yield self._event(f"{kind}.delta", **command_position, delta=command)
                    yield self._event(f"{kind}.done", **command_position, command=command)

    def _event(self, kind: str, **values: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **values}, kind)


def output_items(reply: Reply, names: Mapping[str, WireName]) -> Iterator[Item]:
    """The finished action as output items. There is at least one item, so that an empty reply can be replayed as well."""
    step, turn = reply.step, reply.turn
    status = "incomplete" if reply.finish_reason is ReplyFinish.LENGTH else "completed"
    if turn.reasoning is not None:
        yield {
            "type": "reasoning",
            "id": f"rs_s{step}",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": turn.reasoning}],
            "encrypted_content": keep_reasoning(step, turn.reasoning),
            "status": status,
        }
    if turn.text or (turn.reasoning is None and not turn.calls):
        yield {
            "type": "message",
            "id": f"msg_s{step}",
            "role": "assistant",
            "status": status,
            "content": [{"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}],
        }
    for i, (identifier, call) in enumerate(zip(reply.call_ids(), turn.calls, strict=True)):
        namespace, name, kind = names.get(call.name, (None, call.name, "function"))
        arguments = call.mapping()
        if kind in PREFIXES and (typed := item_of(kind, arguments)) is not None:
            common = {"id": f"{PREFIXES[kind]}_s{step}_{i}", "call_id": identifier, "status": "completed"}
            yield {"type": f"{kind}_call", **common, **typed}
            continue
        fields = {"call_id": identifier, "name": name, "status": "completed"}
        if namespace is not None:
            fields["namespace"] = namespace
        if kind == "custom" and list(arguments) == [INPUT] and isinstance(arguments[INPUT], str):
            yield {"type": "custom_tool_call", "id": f"ctc_s{step}_{i}", "input": arguments[INPUT], **fields}
        else:
            yield {"type": "function_call", "id": f"fc_s{step}_{i}", "arguments": call.arguments, **fields}


def _started(item: Item) -> Item:
    """An item as its first event shows it, without the content of the later events."""
    empty: Item = {"status": "in_progress"}
    match item["type"]:
        case "message" | "reasoning":
            empty["content"] = []
        case "function_call":
            empty["arguments"] = ""
        case "custom_tool_call":
            empty["input"] = ""
        case "shell_call":
            empty["action"] = {**item["action"], "commands": []}
    return {**item, **empty}


def finished_response(echo: Mapping[str, Any], reply: Reply, items: list[Item]) -> dict[str, Any]:
    """The body of a finished reply: completed, or incomplete when the length limit cut it off."""
    incomplete = reply.finish_reason is ReplyFinish.LENGTH
    response = _response(echo, "incomplete" if incomplete else "completed", items)
    if incomplete:
        response["incomplete_details"] = {"reason": "max_output_tokens"}
    else:
        response["completed_at"] = int(time.time())
    body = echo["body"]
    response["tools"] = body.get("tools") or []
    response["instructions"] = body.get("instructions")
    response["usage"] = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
    return response


def _response(echo: Mapping[str, Any], status: str, output: list[Item]) -> dict[str, Any]:
    """A response object; tools and instructions are repeated only once it is finished."""
    body = echo["body"]
    return {
        "id": echo["id"],
        "object": "response",
        "created_at": echo["created"],
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": echo["model"],
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"),
        "store": body.get("store") is not False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
    }
