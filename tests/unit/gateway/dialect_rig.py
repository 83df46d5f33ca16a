"""Shared by the tests of the dialects: one conversation, spelled in three wires as their clients do; streams folded by the official packages.

A conversation is a list of entries: a user's text, a `Reply` of ours, or a list of (tool-call id, result).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anthropic.types as anthropic_types
from anthropic import NOT_GIVEN
from anthropic.lib.streaming._messages import accumulate_event
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from orchestrator.contracts.events import StepTimings
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.gateway.http.dialects.anthropic import AnthropicDialect
from orchestrator.gateway.http.dialects.base import Dialect, Incoming
from orchestrator.gateway.http.dialects.chat import ChatDialect
from orchestrator.gateway.http.dialects.responses import ResponsesDialect
from orchestrator.gateway.messages.requests import Reply
from orchestrator.gateway.messages.turns import CanonicalCall, Turn, canonical_json

Entry = str | Reply | list[tuple[str, str]]
Body = dict[str, Any]

COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
PATCH = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}}


def call(name: str, **arguments: Any) -> CanonicalCall:
    return CanonicalCall(name, canonical_json(arguments))


def reply_of(turn: Turn, step: int = 0, finish: Finish = Finish.STOP, stopped: str | None = None) -> Reply:
    """A recorded step as the gateway serves it."""
    return Reply(
        step=step,
        turn=turn,
        finish=finish,
        parse=ParseStatus.OK,
        prompt_tokens=7,
        completion_tokens=3,
        timings=StepTimings(),
        stopped=stopped,
    )


def chat_body(conversation: Sequence[Entry]) -> Body:
    messages: list[Body] = [{"role": "system", "content": "Rules."}]
    for entry in conversation:
        if isinstance(entry, str):
            messages.append({"role": "user", "content": entry})
        elif isinstance(entry, Reply):
            messages.append(spoken(CHAT, entry)["choices"][0]["message"])
        else:
            messages += [{"role": "tool", "tool_call_id": i, "content": text} for i, text in entry]
    shown = [("bash", "Run.", COMMAND), ("apply_patch", "Patch.", PATCH), ("mcp__files__read", "Read.", PATH)]
    tools = [
        {"type": "function", "function": {"name": n, "description": d, "parameters": p}} for n, d, p in shown
    ]
    return {"model": "m", "messages": messages, "tools": tools}


def responses_body(conversation: Sequence[Entry]) -> Body:
    items: list[Body] = []
    freeform = set()
    for entry in conversation:
        if isinstance(entry, str):
            items.append({"role": "user", "content": [{"type": "input_text", "text": entry}]})
        elif isinstance(entry, Reply):
            output = spoken(RESPONSES, entry)["output"]
            freeform |= {item["call_id"] for item in output if item["type"] == "custom_tool_call"}
            items += output
        else:
            for identifier, text in entry:
                kind = "custom_tool_call" if identifier in freeform else "function_call"
                items.append({"type": f"{kind}_output", "call_id": identifier, "output": text})
    return {
        "model": "m",
        "instructions": "Rules.",
        "input": items,
        "store": False,
        "tools": [
            {
                "type": "function",
                "name": "bash",
                "description": "Run.",
                "parameters": COMMAND,
                "strict": False,
            },
            {"type": "custom", "name": "apply_patch", "description": "Patch."},
            {
                "type": "namespace",
                "name": "mcp__files__",
                "description": "files",
                "tools": [{"type": "function", "name": "read", "description": "Read.", "parameters": PATH}],
            },
        ],
    }


def anthropic_body(conversation: Sequence[Entry]) -> Body:
    messages: list[Body] = []
    for entry in conversation:
        if isinstance(entry, str):
            messages.append({"role": "user", "content": [{"type": "text", "text": entry}]})
        elif isinstance(entry, Reply):
            messages.append({"role": "assistant", "content": spoken(ANTHROPIC, entry)["content"]})
        else:
            blocks = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, text in entry]
            messages.append({"role": "user", "content": blocks})
    shown = [("bash", "Run.", COMMAND), ("apply_patch", "Patch.", PATCH), ("mcp__files__read", "Read.", PATH)]
    tools = [{"name": n, "description": d, "input_schema": p} for n, d, p in shown]
    return {"model": "m", "max_tokens": 99, "system": "Rules.", "messages": messages, "tools": tools}


def decoded(events: Iterable[bytes]) -> list[tuple[str | None, Any]]:
    """(event name, data) of server-sent events; comments are dropped."""
    found: list[tuple[str | None, Any]] = []
    for block in b"".join(events).decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if lines and lines["data"] != "[DONE]":
            found.append((lines.get("event"), json.loads(lines["data"])))
    return found


def fold_chat(events: Iterable[bytes]) -> Body:
    state = ChatCompletionStreamState()
    for _, data in decoded(events):
        state.handle_chunk(ChatCompletionChunk.model_validate(data))
    return state.current_completion_snapshot.model_dump(mode="json", exclude_unset=True)


def fold_responses(events: Iterable[bytes]) -> Body:
    """The terminal response. Its items equal those of the items' own events, and the sums of their deltas."""
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    items: dict[int, Body] = {}
    for number, (name, data) in enumerate(decoded(events)):
        adapter.validate_python(data)
        assert data["type"] == name and data["sequence_number"] == number
        kind, at = str(name), data.get("output_index")
        if kind == "response.output_item.added":
            items[at] = data["item"]
        elif kind == "response.content_part.added":
            items[at]["content"].append(data["part"])
        elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
            items[at]["content"][data["content_index"]]["text"] += data["delta"]
        elif kind == "response.function_call_arguments.delta":
            items[at]["arguments"] += data["delta"]
        elif kind == "response.custom_tool_call_input.delta":
            items[at]["input"] += data["delta"]
        elif kind == "response.shell_call_command.done":
            items[at]["action"]["commands"].append(data["command"])
        elif kind == "response.output_item.done":
            assert {**items[at], "status": data["item"]["status"]} == data["item"]
            items[at] = data["item"]
        last = data
    assert last["type"] in ("response.completed", "response.incomplete", "response.failed")
    assert last["response"]["output"] == [items[at] for at in sorted(items)]
    return dict(last["response"])


def fold_anthropic(events: Iterable[bytes]) -> Body:
    adapter: TypeAdapter[Any] = TypeAdapter(anthropic_types.RawMessageStreamEvent)
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for name, data in decoded(events):
        assert data["type"] == name
        if name != "ping":
            event = adapter.validate_python(data)
            snapshot = accumulate_event(
                event=event, current_snapshot=snapshot, json_bufs=buffers, output_format=NOT_GIVEN
            )
    assert name == "message_stop"
    return json.loads(snapshot.to_json(exclude_unset=True))  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Wire:
    """A dialect, how its clients write a conversation, how they fold a stream, and the type of its whole reply."""

    dialect: Dialect
    body: Callable[[Sequence[Entry]], Body]
    fold: Callable[[Iterable[bytes]], Body]
    shape: type[Any]

    def read(self, conversation: Sequence[Entry]) -> Incoming:
        return self.dialect.read(self.body(conversation), {})


CHAT = Wire(dialect=ChatDialect(), body=chat_body, fold=fold_chat, shape=ChatCompletion)
RESPONSES = Wire(dialect=ResponsesDialect(), body=responses_body, fold=fold_responses, shape=Response)
ANTHROPIC = Wire(
    dialect=AnthropicDialect(), body=anthropic_body, fold=fold_anthropic, shape=anthropic_types.Message
)
WIRES = (CHAT, RESPONSES, ANTHROPIC)


def spoken(wire: Wire, reply: Reply) -> Body:
    """The whole reply on a wire, as JSON."""
    return json.loads(json.dumps(wire.dialect.reply(wire.read(["hello"]), reply)))  # type: ignore[no-any-return]


def streamed(wire: Wire, incoming: Incoming, reply: Reply, pings: int = 1) -> list[bytes]:
    """The whole stream."""
    events = wire.dialect.events(incoming)
    return [events.opening(), *(events.waiting() for _ in range(pings)), *events.finished(reply)]


def without(value: Any, keys: Mapping[str, Any] | Sequence[str]) -> Any:
    """`value` without these keys, at any depth: keys whose values always differ between two replies."""
    if isinstance(value, dict):
        return {key: without(item, keys) for key, item in value.items() if key not in keys}
    return [without(item, keys) for item in value] if isinstance(value, list) else value
