"""OpenAI Responses: streamed or not, function and freeform tools, namespaces, reasoning items that come back.

Nothing is stored: every request brings the whole conversation. A stream is response.created and response.in_progress at once,
response.in_progress again as a sign of life (clients that count events do not count comments), the items of the finished action, and
always one terminal event: response.completed, incomplete or failed.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.gateway.dialects.base import Incoming, as_object, model_of, request_of, sse
from orchestrator.gateway.dialects.errors import openai_error
from orchestrator.gateway.dialects.keepsakes import keep_reasoning
from orchestrator.gateway.dialects.responses_input import INPUT, Names, read_request
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.gateway.requests import Reply

Item = dict[str, Any]


class ResponsesDialect:
    """See the module."""

    name = "responses"
    paths: tuple[str, ...] = ("/v1/responses",)
    counting: tuple[str, ...] = ("/v1/responses/input_tokens",)

    def read(self, body: Any, headers: Mapping[str, str]) -> Incoming:
        body = as_object(body)
        if body.get("background"):
            raise bad_request(
                "background responses are not supported: stream the reply instead", "background"
            )
        spoken, names = read_request(body)
        request = request_of(self.name, body, headers, spoken, limits=("max_output_tokens",), stop="stop")
        echo = {
            "model": model_of(body),
            "id": f"resp_{secrets.token_hex(16)}",
            "created": int(time.time()),
            "names": names,
            "body": body,
        }
        return Incoming(request, bool(body.get("stream")), echo)

    def reply(self, incoming: Incoming, reply: Reply) -> Any:
        echo = incoming.echo
        return finished_response(echo, reply, list(_items(reply, echo["names"])))

    def events(self, incoming: Incoming) -> "ResponseEvents":
        return ResponseEvents(incoming)

    def counted(self, tokens: int) -> Any:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def error(self, problem: Problem) -> Any:
        return openai_error(problem)


class ResponseEvents:
    """The numbered events of one reply."""

    def __init__(self, incoming: Incoming) -> None:
        self._echo = incoming.echo
        self._number = 0

    def opening(self) -> bytes:
        begun = _response(self._echo, "in_progress", [])
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def waiting(self) -> bytes:
        return self._event("response.in_progress", response=_response(self._echo, "in_progress", []))

    def finished(self, reply: Reply) -> Iterator[bytes]:
        items = list(_items(reply, self._echo["names"]))
        for at, item in enumerate(items):
            yield self._event("response.output_item.added", output_index=at, item=_begun(item))
            yield from self._content(at, item)
            yield self._event("response.output_item.done", output_index=at, item=item)
        response = finished_response(self._echo, reply, items)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, problem: Problem) -> Iterator[bytes]:
        response = _response(self._echo, "failed", [])
        code = "invalid_prompt" if problem.status < 500 else "server_error"
        response["error"] = {"code": code, "message": problem.message, "type": problem.code}
        yield self._event("response.failed", response=response)

    def _content(self, at: int, item: Item) -> Iterator[bytes]:
        """What an item holds, whole: the action is finished."""
        place = {"item_id": item["id"], "output_index": at}
        match item["type"]:
            case "message" | "reasoning":
                (part,) = item["content"]
                kind = part["type"]
                odds: Item = {"logprobs": []} if kind == "output_text" else {}
                place["content_index"] = 0
                yield self._event("response.content_part.added", **place, part={**part, "text": ""})
                yield self._event(f"response.{kind}.delta", **place, delta=part["text"], **odds)
                yield self._event(f"response.{kind}.done", **place, text=part["text"], **odds)
                yield self._event("response.content_part.done", **place, part=part)
            case "function_call":
                kind, given = "response.function_call_arguments", item["arguments"]
                yield self._event(f"{kind}.delta", **place, delta=given)
                yield self._event(f"{kind}.done", **place, arguments=given, name=item["name"])
            case "custom_tool_call":
                kind, given = "response.custom_tool_call_input", item["input"]
                yield self._event(f"{kind}.delta", **place, delta=given)
                yield self._event(f"{kind}.done", **place, input=given)

    def _event(self, kind: str, **values: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **values}, kind)


def _items(reply: Reply, names: Names) -> Iterator[Item]:
    """The finished action as output items. There is always one, so that a reply that says nothing can be replayed as well."""
    step, turn = reply.step, reply.turn
    status = "incomplete" if reply.finish_reason == "length" else "completed"
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
        namespace, name, freeform = names.of(call.name)
        given = call.mapping()
        odds = {"call_id": identifier, "name": name, "status": "completed"}
        if namespace is not None:
            odds["namespace"] = namespace
        if freeform and list(given) == [INPUT] and isinstance(given[INPUT], str):
            yield {"type": "custom_tool_call", "id": f"ctc_s{step}_{i}", "input": given[INPUT], **odds}
        else:
            yield {"type": "function_call", "id": f"fc_s{step}_{i}", "arguments": call.arguments, **odds}


def _begun(item: Item) -> Item:
    """An item as its first event shows it: without what follows."""
    empty: Item = {"status": "in_progress"}
    match item["type"]:
        case "message" | "reasoning":
            empty["content"] = []
        case "function_call":
            empty["arguments"] = ""
        case "custom_tool_call":
            empty["input"] = ""
    return {**item, **empty}


def finished_response(echo: Mapping[str, Any], reply: Reply, items: list[Item]) -> dict[str, Any]:
    """The body of a finished reply: completed, or incomplete when it was cut off by length."""
    cut = reply.finish_reason == "length"
    response = _response(echo, "incomplete" if cut else "completed", items)
    if cut:
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
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
    }
