"""The facts about a request that a script needs, read from its body on any wire. Lenient: the gateway validates requests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from scaffolds.base import Wire

_ENDINGS: Mapping[str, Wire] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "anthropic",
    "/native/complete": "native",
}
_OF_POLICY = frozenset({"reasoning", "function_call", "custom_tool_call", "local_shell_call"})


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that a program offers. `schema` is JSON Schema; None: it takes free text."""

    name: str
    schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """A completion request. `first` is the text of its first message, `first_user_text` of its first user message, `turn` the number of replies in
    its history, `results` the number of tool results, `history` the history as JSON, `size` the characters of all texts."""

    wire: Wire
    model: str
    stream: bool
    tools: tuple[OfferedTool, ...]
    first: str
    first_user_text: str
    turn: int
    results: int
    history: str
    size: int


def wire_of(path: str) -> Wire | None:
    """The wire of a completion's path; None for other requests."""
    return next((wire for ending, wire in _ENDINGS.items() if path.endswith(ending)), None)


def read(wire: Wire, body: Mapping[str, Any]) -> SeenRequest:
    """Read one request."""
    roles = list(_roles(wire, body))
    texts = [text for _, text in roles]
    first_user_text = next((text for role, text in roles if role == "user"), "")
    turns = [role == "assistant" for role, _ in roles]
    assistant_runs = sum(now and not before for before, now in zip([False, *turns], turns, strict=False))
    return SeenRequest(
        wire=wire,
        model=str(body.get("model") or ""),
        stream=bool(body.get("stream")),
        tools=tuple(_tools(body.get("tools") or ())),
        first=texts[0] if texts else "",
        first_user_text=first_user_text,
        turn=assistant_runs if wire != "chat" and wire != "native" else sum(turns),
        results=sum(role == "tool" for role, _ in roles),
        history=_calls(body),
        size=sum(map(len, texts)),
    )


def _roles(wire: Wire, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(role, text) of every part of a history."""
    for key in ("system", "instructions"):
        if body.get(key):
            yield "system", _text(body[key])
    items = body.get("input") if wire == "responses" else body.get("messages")
    if isinstance(items, str):
        yield "user", items
        return
    for item in items or ():
        kind, role = item.get("type"), str(item.get("role") or "")
        if kind in _OF_POLICY:
            yield "assistant", _text(item)
        elif isinstance(kind, str) and kind.endswith("_output"):
            yield "tool", _text(item.get("output"))
        elif wire == "anthropic" and isinstance(item.get("content"), list):
            for part in item["content"]:
                yield ("tool" if part.get("type") == "tool_result" else role), _text(part)
        else:
            yield role, _text(item.get("content"))


def _calls(body: Mapping[str, Any]) -> str:
    """The whole history as JSON, including commands of tool calls."""
    return msgspec.json.encode([body.get("messages"), body.get("input")]).decode()


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return "\n".join(map(_text, value))
    if isinstance(value, Mapping):
        return _text(value.get("text") or value.get("content") or value.get("arguments") or "")
    return ""


def _tools(raw: Sequence[Any]) -> Iterator[OfferedTool]:
    for tool in raw:
        if not isinstance(tool, Mapping):
            continue
        function = tool.get("function") if isinstance(tool.get("function"), Mapping) else tool
        assert isinstance(function, Mapping)
        if not isinstance(name := function.get("name"), str):
            continue
        schema = function.get("parameters") or function.get("input_schema")
        if isinstance(schema, Mapping):
            yield OfferedTool(name, schema)
        elif tool.get("type") == "custom":
            yield OfferedTool(name, None)
