"""Keys of a tool or a message that another wire has: refused with this wire's own, since otherwise the policy would miss what they hold."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from orchestrator.gateway.problems import bad_request


class Form(StrEnum):
    """A tool as a wire writes it."""

    FUNCTION = "function"  # of Chat Completions, around its function
    CUSTOM = "custom"
    CHAT = "a function of Chat Completions"
    CHAT_CUSTOM = "a custom tool of Chat Completions"
    RESPONSES = "a function of the Responses wire"
    RESPONSES_CUSTOM = "a custom tool of the Responses wire"
    ANTHROPIC = "a tool of the Messages wire"
    NAMESPACE = "a namespace"
    TYPED = "a tool with a type of its own"


_OWN: Mapping[Form, tuple[str, ...]] = {
    Form.FUNCTION: ("function",),
    Form.CUSTOM: ("custom",),
    Form.CHAT: ("name", "description", "parameters"),
    Form.CHAT_CUSTOM: ("name", "description", "format"),
    Form.RESPONSES: ("name", "description", "parameters"),
    Form.RESPONSES_CUSTOM: ("name", "description", "format"),
    Form.ANTHROPIC: ("name", "description", "input_schema"),
    Form.NAMESPACE: ("name", "description", "tools"),
    Form.TYPED: ("name",),
}
_DECIDING = frozenset(
    {
        "name",
        "description",
        "parameters",
        "input_schema",
        "inputSchema",
        "schema",
        "function",
        "custom",
        "format",
        "grammar",
    }
    | {"functions", "tools", "namespace"}
)
"""Keys of any wire, or of MCP, that decide what the policy sees of a tool."""
_OF_MESSAGES: Mapping[str, Mapping[str, str]] = {
    "anthropic": {
        "tool_calls": "tool_use blocks",
        "function_call": "a tool_use block",
        "tool_call_id": "a tool_result block",
        "reasoning_content": "a thinking block",
    },
    "responses": {
        "tool_calls": "function_call items",
        "function_call": "a function_call item",
        "tool_call_id": "a function_call_output item",
        "reasoning_content": "a reasoning item",
    },
}
"""Keys of chat messages that hold a part of the conversation: their forms on the other wires."""
RESULT_IDS: Final = ("tool_call_id", "tool_use_id", "call_id")
"""Keys under which the wires name the call that a result answers."""
ARGUMENTS: Final = ("arguments", "input", "args", "parameters")
"""Keys under which the wires and others send the arguments of a call."""
CONTENTS: Final = ("content", "text", "parts", "input")
CONTAINERS: Final = ("container_auto", "container_reference")
"""Environments of a shell at a provider."""


def check_keys(tool: Mapping[str, Any], form: Form, where: str) -> None:
    """Raise Problem 400 naming a key that decides what the policy sees, and that a tool of this form does not have."""
    own = _OWN[form]
    for key, value in tool.items():
        if key in _DECIDING and key not in own and value is not None:
            raise bad_request(f"{where}.{key} is not read: {form} has {', '.join(own)}", "tools")
    if not isinstance(tool.get("allowed_callers"), list | None):
        raise bad_request(f"{where}.allowed_callers must be a list", "tools")


def check_environment(tool: Mapping[str, Any], where: str) -> None:
    """The same for the environment of a local shell."""
    environment = tool.get("environment")
    if environment is None:
        return
    if not isinstance(environment, dict) or environment.get("type") != "local":
        raise bad_request(
            f"{where}.environment.type must be one of {', '.join(('local', *CONTAINERS))}", "tools"
        )
    if environment.get("skills"):
        raise bad_request(
            f"{where}.environment.skills is not read: describe them in the instructions", "tools"
        )


_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
"""Values that hold nothing which would be lost."""


def check_key(item: Mapping[str, Any], own: str, others: Iterable[str], where: str, param: str) -> None:
    """Raise Problem 400 naming a key of another wire that holds what this one reads from the missing key `own`."""
    if item.get(own) in _EMPTY:
        for key in others:
            if key != own and item.get(key) not in _EMPTY:
                raise bad_request(f"{where}.{key} is not read: use {own} on this wire", param)


def check_message(wire: str, message: Mapping[str, Any], where: str, param: str) -> None:
    """Raise Problem 400 naming a key of a chat message that holds a part of the conversation, on a wire that has another form for it."""
    for key, own in _OF_MESSAGES[wire].items():
        if message.get(key):
            raise bad_request(f"{where}.{key} is not read: use {own} on this wire", param)
