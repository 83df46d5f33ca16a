"""The input side of the Responses wire: converts items to chat messages, and tools of every kind to function tools.

| item | becomes |
|---|---|
| message (user, system, developer) | a message of that role |
| reasoning, message (assistant), function_call, custom_tool_call | parts of one assistant message, in this order |
| local_shell_call, shell_call, apply_patch_call of a client's tool | the same, as calls of functions (`typed_calls.py`) |
| function_call_output, custom_tool_call_output, outputs of typed tools | a tool message |
| any other with a `call_id` and an `output`, once a call has that id | a tool message |
| additional_tools | tools |
| item_reference (also an id alone), previous_response_id | the object that was served under that id |
| configuration_update | nothing, counted; refused in a session without a step if it wants a form of the reply |
| items of a provider's own tools, any other item and calls without a name once the assistant has spoken | nothing, counted |
| a message of an unknown role once the assistant has spoken | a user's message that begins with the role, counted |
| any other item in the opening of a conversation | refused |
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.http.dialects.base import (
    NOTHING,
    ChatRequest,
    Known,
    Wanted,
)
from orchestrator.gateway.http.dialects.fields import check_fields
from orchestrator.gateway.http.dialects.opaque_reasoning import kept_reasoning
from orchestrator.gateway.http.dialects.responses_tools import read_tools, tools_of_the_past
from orchestrator.gateway.http.dialects.tool_names import ToolNames
from orchestrator.gateway.messages.content import LEFT_KEY, flatten, of_unknown_role, unknown_role
from orchestrator.gateway.messages.foreign_keys import (
    ARGUMENTS,
    CONTENTS,
    RESULT_IDS,
    check_key,
    check_message,
)
from orchestrator.gateway.messages.requests import (
    INPUT,
    tool_list,
)
from orchestrator.gateway.messages.turns import INSTRUCTIONS_KEY, STEP_KEY, named, step_of
from orchestrator.gateway.messages.typed_calls import (
    CALLS,
    OUTPUTS,
    answered,
    arguments_of,
    result_of,
)
from orchestrator.gateway.problems import Problem, bad_request

_ROLES = ("system", "developer", "user", "assistant")
# Created and answered by a provider's servers, or in a form that only its models know. The gateway never serves such an item.
_PROVIDER_ENDINGS = ("_call", "_call_output")
_PROVIDER_ITEMS = frozenset(
    {
        "compaction",
        "compaction_trigger",
        "configuration_update",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "program",
        "program_output",
        "tool_search_output",
    }
)


def read_request(body: Mapping[str, Any], known: Known = NOTHING) -> tuple[ChatRequest, ToolNames]:
    """The conversation and tools of a request body. Raises Problem 400 naming the error, Wanted if it refers to ids that `known` does not hold."""
    items = body.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    before = _before(body.get("previous_response_id"), known)
    if not isinstance(items, list) or (not items and not before):
        raise bad_request("input must be a non-empty string or list of items", "input")
    _check_references(items, known)
    if not known.past and not before:
        _check_updates(items)
    items = [_object(item, f"input[{i}]", known) for i, item in enumerate(items)]
    names = ToolNames()
    tools = list(
        read_tools([(f"tools[{i}]", tool) for i, tool in enumerate(tool_list(body.get("tools")))], names)
    )
    for item in items:
        if item.get("type") == "additional_tools":
            tools += tools_of_the_past(item.get("tools"), names)
    conversation = _Conversation(names, past=known.past or bool(before))
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise bad_request("instructions must be a string", "instructions")
    if instructions:
        conversation.messages.append({"role": "system", "content": instructions, INSTRUCTIONS_KEY: True})
    for message in before:
        conversation.continue_from(message)
    for i, item in enumerate(items):
        if item.get("type") != "additional_tools":
            conversation.add(item, f"input[{i}]")
    stripped = sum(tool is None for tool in tools)
    messages = ChatRequest(
        messages=conversation.messages,
        tools=[tool for tool in tools if tool is not None],
        left_out=conversation.left_out + stripped,
        names=names,
    )
    return messages, names


def _object(item: Any, where: str, known: Known) -> Mapping[str, Any]:
    """An item, or the stored one that it refers to."""
    if not isinstance(item, dict):
        raise bad_request(f"{where} is not an object", "input")
    stored: Mapping[str, Any] = known.stored[item["id"]] if _refers(item) else item
    return stored


def _refers(item: Mapping[str, Any]) -> bool:
    """Whether an item stands for a stored one. Its type may be absent or null if it has an id and nothing else."""
    if item.get("type") is not None:
        return bool(item["type"] == "item_reference")
    return isinstance(item.get("id"), str) and all(
        value is None for key, value in item.items() if key not in ("id", "type")
    )


def _unknown(kind: object, where: str) -> Problem:
    wrong = "has no type" if kind is None else f"is of the unknown type {quoted(kind)}"
    return bad_request(f"{where} {wrong}: send messages, function calls and their outputs", "input")


def _before(previous: Any, known: Known) -> list[dict[str, Any]]:
    """The conversation that a request continues, without the instructions of the previous request: they apply to one request only."""
    if previous is None:
        return []
    key = "previous_response_id"
    if not isinstance(previous, str):
        raise bad_request(f"{key} must be the id of a response", key)
    messages = known.stored.get(previous)
    if not isinstance(messages, list):  # an item's id
        raise Wanted([previous], key)
    return [dict(message) for message in messages if not message.get(INSTRUCTIONS_KEY)]


def _check_references(items: Sequence[Any], known: Known) -> None:
    unresolved = []
    for i, item in enumerate(items):
        if isinstance(item, dict) and _refers(item):
            identifier = item.get("id")
            if not isinstance(identifier, str):
                raise bad_request(f"input[{i}] refers to a stored item without an id", "input")
            stored = known.stored.get(identifier)
            if stored is None:
                unresolved.append((i, identifier))
            elif not isinstance(stored, Mapping):
                raise bad_request(
                    f"input[{i}] refers to a response: name it as previous_response_id", "input"
                )
    if unresolved:
        missing = next((reference for reference in unresolved if reference[1] in known.stored), unresolved[0])
        raise Wanted([missing[1], *(identifier for _, identifier in unresolved)], f"input[{missing[0]}]")


def _check_updates(items: Sequence[Any]) -> None:
    """Raise Problem 400 naming a form of the reply that a configuration update wants, as for the body's own `text`."""
    for i, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "configuration_update":
            check_fields("responses", {"text": item.get("text")}, f"input[{i}].")


class _Conversation:
    """Chat messages so far. Consecutive pieces of one reply are one assistant message."""

    def __init__(self, names: ToolNames, *, past: bool) -> None:
        self._names = names
        self.messages: list[dict[str, Any]] = []
        self.left_out = 0
        self._past = past
        self._calls: set[str] = set()  # their ids
        # The last reply, if only results follow it, and the steps that the ids of its calls name.
        self._replied: dict[str, Any] | None = None
        self._steps: set[int | None] = set()

    def continue_from(self, message: dict[str, Any]) -> None:
        """Add the next message of the conversation that the request continues."""
        self.messages.append(message)
        if message["role"] != "tool":
            self._replied, self._steps = message if message["role"] == "assistant" else None, set()
        for call in message.get("tool_calls") or ():
            self._note(call["id"])

    def add(self, item: Mapping[str, Any], where: str) -> None:
        """Add the next item."""
        kind = item.get("type")
        if kind is None and "role" in item:
            kind = "message"
        match kind if isinstance(kind, str) else "":
            case "message":
                self._message(item, where)
            case "reasoning":
                self._reasoning(item, where)
            case "function_call" | "custom_tool_call" if self._past and not named(item.get("name")):
                self.left_out += 1
            case "function_call" | "custom_tool_call":
                self._call(item, kind == "custom_tool_call", where)
            case kind if kind in CALLS and (arguments := arguments_of(item)) is not None:
                self._say({"name": CALLS[kind], "arguments": arguments}, answered(item))
            case "function_call_output" | "custom_tool_call_output":
                self._output(item, where)
            case kind if ("output" in item or kind in OUTPUTS) and self._called(answered(item)):
                self._output(item, where)
            case kind if self._past or kind.endswith(_PROVIDER_ENDINGS) or kind in _PROVIDER_ITEMS:
                self.left_out += 1
            case _:
                raise _unknown(item.get("type"), where)

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        known = role in _ROLES
        if not known and not self._past:
            raise unknown_role(role, where, _ROLES, "input")
        check_message("responses", item, where, "input")
        check_key(item, "content", CONTENTS, where, "input")
        from_assistant = role == "assistant"
        text, missing = flatten(
            item.get("content"), where, past=self._past or from_assistant, shown=not from_assistant
        )
        if from_assistant:
            message = self._reply("content", "tool_calls", step=step_of(item.get("id")))
            message["content"] = text
        else:
            if not known:
                text, mark = of_unknown_role(role, text)
                role, missing = "user", (*missing, *mark)
            message = {"role": role, "content": text}
            self.messages.append(message)
            self._replied = None
        message[LEFT_KEY] = missing

    def _output(self, item: Mapping[str, Any], where: str) -> None:
        check_key(item, "output", ("content",), where, "input")
        if str(item.get("type")) not in OUTPUTS:
            check_key(item, "call_id", RESULT_IDS, where, "input")
        text, missing = flatten(result_of(item), where, past=True)
        result = {"role": "tool", "tool_call_id": answered(item), "content": text}
        self.messages.append({**result, LEFT_KEY: missing})

    def _called(self, identifier: object) -> bool:
        return identifier is not None and str(identifier) in self._calls

    def _note(self, identifier: object) -> None:
        """Remember the id of a call of the last reply."""
        self._steps.add(step_of(identifier))
        if identifier is not None:
            self._calls.add(str(identifier))

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        check_key(item, "content", ("text", "thinking"), where, "input")
        recorded = kept_reasoning(item.get("encrypted_content"))
        step = recorded[0] if recorded is not None else step_of(item.get("id"))
        text, _ = flatten(_texts(item.get("content")) or _texts(item.get("summary")), past=True)
        message = self._reply("reasoning_content", "content", "tool_calls", step=step)
        message["reasoning_content"] = text or (recorded[1] if recorded is not None else "")

    def _call(self, item: Mapping[str, Any], freeform: bool, where: str) -> None:
        name = item.get("name")
        if not named(name):
            raise bad_request(f"{where} is a tool call without a name", "input")
        if item.get("function") is not None:
            raise bad_request(f"{where}.function is not read: use name and arguments on this wire", "input")
        check_key(item, "call_id", RESULT_IDS, where, "input")
        own = "input" if freeform else "arguments"
        check_key(item, own, ARGUMENTS, where, "input")
        arguments = {INPUT: item.get("input")} if freeform else item.get("arguments")
        called = self._names.called(name, item.get("namespace"), where)
        self._say({"name": called, "arguments": arguments}, answered(item))

    def _say(self, function: Mapping[str, Any], identifier: object) -> None:
        call = {"id": identifier, "function": function}
        step = step_of(identifier)
        # Some programs replay each parallel call of a step together with its result.
        siblings = self._replied if step is not None and step in self._steps else None
        message = siblings if siblings is not None else self._reply(step=step)
        message.setdefault("tool_calls", []).append(call)
        self._note(identifier)

    def _reply(self, *later: str, step: int | None) -> dict[str, Any]:
        """The assistant message that the next piece belongs to: the last one, unless it already has that piece or a `later` one, or
        belongs to another step."""
        last = self.messages[-1] if self.messages else None
        other_step = last is not None and step is not None and last.get(STEP_KEY, step) != step
        if last is None or last["role"] != "assistant" or other_step or any(key in last for key in later):
            last = {"role": "assistant"}
            self.messages.append(last)
            self._replied, self._steps = last, set()
        self._past = True
        if step is not None:
            last[STEP_KEY] = step
        return last


def _texts(parts: Any) -> list[Any]:
    """The text parts of a reasoning item."""
    found = parts if isinstance(parts, list) else []
    return [part["text"] for part in found if isinstance(part, dict) and isinstance(part.get("text"), str)]
