"""The input side of the Responses wire: items become chat messages, tools of every kind become function tools.

| item | becomes |
|---|---|
| message (user, system, developer) | a message of that role |
| reasoning, message (assistant), function_call, custom_tool_call | parts of one assistant message, in this order |
| function_call_output, custom_tool_call_output | a tool message |
| additional_tools | tools |
| what a provider's own tools left behind | nothing, counted |
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.gateway.dialects.base import Spoken
from orchestrator.gateway.dialects.keepsakes import kept_reasoning
from orchestrator.gateway.messages import STEP_KEY, flatten, step_of
from orchestrator.gateway.problems import bad_request
from orchestrator.gateway.requests import function_tool, tool_list

INPUT = "input"  # the one parameter of a freeform tool
_FREEFORM: dict[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
# Made and answered by a provider's servers, or in a form that only its models know; we never serve such an item.
_PROVIDER_ITEMS = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)


class Names:
    """Tool names as the policy sees them, and as the wire does: (namespace or None, name, freeform)."""

    def __init__(self) -> None:
        self._wire: dict[str, tuple[str | None, str, bool]] = {}

    def add(self, namespace: str | None, name: str, freeform: bool) -> str:
        """The policy's name of a tool. Problem 400 when another one has it."""
        flat = joined(namespace, name)
        if self._wire.setdefault(flat, (namespace, name, freeform)) != (namespace, name, freeform):
            raise bad_request(f"two different tools are called {flat!r}: rename one", "tools")
        return flat

    def of(self, flat: str) -> tuple[str | None, str, bool]:
        """The wire's name of a tool that the policy calls."""
        return self._wire.get(flat, (None, flat, False))


def joined(namespace: object, name: str) -> str:
    """One name for a tool of a namespace: `mcp__files` or `mcp__files__`, `read` → `mcp__files__read`."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def read_request(body: Mapping[str, Any]) -> tuple[Spoken, Names]:
    """The conversation and tools of a request body. Problem 400 naming what is wrong."""
    for key in ("previous_response_id", "conversation", "prompt"):
        if body.get(key) is not None:
            raise bad_request(
                f"{key} is not supported, since nothing is stored here: send the whole conversation as input",
                key,
            )
    items = body.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list) or not items:
        raise bad_request("input must be a non-empty string or list of items", "input")
    names = Names()
    conversation = _Conversation()
    instructions = body.get("instructions")
    if isinstance(instructions, str) and instructions:
        conversation.messages.append({"role": "system", "content": instructions})
    raw_tools = tool_list(body.get("tools"))
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise bad_request(f"input[{i}] is not an object", "input")
        if item.get("type") == "additional_tools":
            raw_tools = [*raw_tools, *tool_list(item.get("tools"))]
        else:
            conversation.add(item, f"input[{i}]")
    tools = list(_tools(raw_tools, names))
    stripped = sum(tool is None for tool in tools)
    spoken = Spoken(
        conversation.messages, [tool for tool in tools if tool is not None], conversation.left_out + stripped
    )
    return spoken, names


def _tools(raw: Sequence[Mapping[str, Any]], names: Names) -> Iterator[Mapping[str, Any] | None]:
    """Function tools; None for each one that would run at a provider."""
    for i, tool in enumerate(raw):
        if tool.get("type") == "namespace":
            inner, namespace = tool_list(tool.get("tools")), tool.get("name")
            if not isinstance(namespace, str) or not namespace:
                raise bad_request(f"tools[{i}] is a namespace without a name", "tools")
            for j, one in enumerate(inner):
                yield _tool(one, namespace, names, f"tools[{i}].tools[{j}]")
        else:
            yield _tool(tool, None, names, f"tools[{i}]")


def _tool(
    tool: Mapping[str, Any], namespace: str | None, names: Names, where: str
) -> Mapping[str, Any] | None:
    kind, name, description = tool.get("type"), tool.get("name"), tool.get("description")
    if kind not in ("function", "custom"):
        return None
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where} has no name", "tools")
    flat = names.add(namespace, name, kind == "custom")
    if kind == "function":
        return function_tool(flat, description, tool.get("parameters"), where)
    form = tool.get("format")
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        grammar = f"The input follows this {form.get('syntax', '')} grammar:\n{form['definition']}"
        description = f"{description}\n\n{grammar}" if isinstance(description, str) else grammar
    return function_tool(flat, description, _FREEFORM, where)


class _Conversation:
    """Chat messages so far. Consecutive pieces of one reply are one assistant message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.left_out = 0

    def add(self, item: Mapping[str, Any], where: str) -> None:
        """The next item."""
        kind = item.get("type", "message" if "role" in item else None)
        match kind:
            case "message":
                text, missing = flatten(item.get("content"), where)
                self.left_out += missing
                role = item.get("role")
                if role == "assistant":
                    self._reply("content", "tool_calls", step=step_of(item.get("id")))["content"] = text
                elif role in ("user", "system", "developer"):
                    self.messages.append({"role": role, "content": text})
                else:
                    raise bad_request(f"{where} has the unknown role {role!r}", "input")
            case "reasoning":
                self._reasoning(item)
            case "function_call" | "custom_tool_call":
                self._call(item, kind == "custom_tool_call", where)
            case "function_call_output" | "custom_tool_call_output":
                text, missing = flatten(item.get("output"), where)
                self.left_out += missing
                self.messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
            case "item_reference":
                raise bad_request(
                    f"{where} refers to a stored item, and nothing is stored here: send the item itself (store: false)",
                    "input",
                )
            case str() if kind in _PROVIDER_ITEMS:
                self.left_out += 1
            case _:
                raise bad_request(f"{where} is of the unknown type {kind!r}", "input")

    def _reasoning(self, item: Mapping[str, Any]) -> None:
        kept = kept_reasoning(item.get("encrypted_content"))
        step = kept[0] if kept is not None else step_of(item.get("id"))
        text, _ = flatten(_texts(item.get("content")) or _texts(item.get("summary")))
        message = self._reply("reasoning_content", "content", "tool_calls", step=step)
        message["reasoning_content"] = text or (kept[1] if kept is not None else "")

    def _call(self, item: Mapping[str, Any], freeform: bool, where: str) -> None:
        name, identifier = item.get("name"), item.get("call_id")
        if not isinstance(name, str) or not name:
            raise bad_request(f"{where} is a tool call without a name", "input")
        given = {INPUT: item.get("input")} if freeform else item.get("arguments")
        call = {
            "id": identifier,
            "function": {"name": joined(item.get("namespace"), name), "arguments": given},
        }
        step = step_of(identifier)
        message = self._siblings(step) or self._reply(step=step)
        message.setdefault("tool_calls", []).append(call)

    def _reply(self, *later: str, step: int | None) -> dict[str, Any]:
        """The assistant message that the next piece belongs to: the last one, unless it already has that piece or a `later` one, or is
        known to be of another step."""
        last = self.messages[-1] if self.messages else None
        other = last is not None and step is not None and last.get(STEP_KEY, step) != step
        if last is None or last["role"] != "assistant" or other or any(key in last for key in later):
            last = {"role": "assistant"}
            self.messages.append(last)
        if step is not None:
            last[STEP_KEY] = step
        return last

    def _siblings(self, step: int | None) -> dict[str, Any] | None:
        """The message with the other calls of this step, when only their results stand between: some programs replay parallel calls
        each with its result."""
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                calls = message.get("tool_calls") or []
                ours = step is not None and any(step_of(call["id"]) == step for call in calls)
                return message if ours else None
            if message["role"] != "tool":
                return None
        return None


def _texts(parts: Any) -> list[Any]:
    """The text parts of a reasoning item."""
    found = parts if isinstance(parts, list) else []
    return [part["text"] for part in found if isinstance(part, dict) and isinstance(part.get("text"), str)]
