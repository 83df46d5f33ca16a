"""Tools that a wire identifies by its own types. Their treatment depends on the program that runs them.

| a type | run by | becomes |
|---|---|---|
| Anthropic's `bash_…`, `text_editor_…`, `memory_…` | the client | a function with the published parameters |
| OpenAI's `local_shell`, `shell` (local), `apply_patch` | the client | a function with the published parameters |
| Anthropic's `computer_…`, `browser_…`; OpenAI's `computer`, `computer_use_preview` | the client, which answers with a picture | refused |
| those of `PROVIDERS`, a `shell` in a container, a function that only programs may call | a provider | left out, counted |
| any other | unknown | refused |

A client gets a call back on Anthropic's wire as a `tool_use`, as for any tool; on the Responses wire as the item of its type (`typed_calls.py`).
"""

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.messages.foreign_keys import CONTAINERS, Form, check_keys
from orchestrator.gateway.messages.requests import freeform_tool, function_tool, tool_list
from orchestrator.gateway.messages.typed_tools import ANTHROPIC
from orchestrator.gateway.problems import Problem, bad_request

PROVIDERS: Final = (
    "web_search",
    "web_fetch",
    "file_search",
    "code_execution",
    "code_interpreter",
    "image_generation",
    "mcp",
    "tool_search",
    "advisor",
    "programmatic_tool_calling",
)
"""Families of tools that a provider's servers run. A type belongs to a family if it has its name, with or without a suffix."""
_PICTURES = ("computer", "browser")


def of_provider(tool: Mapping[str, Any]) -> bool:
    """Whether a provider's servers would run a tool, or a program there would call it."""
    callers = tool.get("allowed_callers")
    if isinstance(callers, list) and callers and "direct" not in callers:
        return True
    kind = tool.get("type")
    environment = tool.get("environment")
    if kind == "shell" and isinstance(environment, dict) and environment.get("type") in CONTAINERS:
        return True
    return isinstance(kind, str) and any(
        kind == prefix or kind.startswith(f"{prefix}_") for prefix in PROVIDERS
    )


def read_tools(raw: Any) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """(function tools, tools left out) of a chat-form list. A custom tool is a function of one string. Raises Problem 400 for any other type."""
    tools, declared = [], tool_list(raw)
    for i, tool in enumerate(declared):
        kind, where = tool.get("type", "function"), f"tools[{i}]"
        inner = tool.get(kind) if kind in ("function", "custom") else None
        if of_provider(tool):
            continue
        if kind not in ("function", "custom"):
            raise unknown(kind, where)
        if not isinstance(inner, dict):
            raise bad_request(
                f"{where} has no {kind} object: on this wire name, description and {'parameters' if kind == 'function' else 'format'} "
                f"belong in {where}.{kind}",
                "tools",
            )
        check_keys({key: value for key, value in tool.items() if value != inner.get(key)}, Form(kind), where)
        check_keys(inner, Form.CHAT if kind == "function" else Form.CHAT_CUSTOM, f"{where}.{kind}")
        name, description = inner.get("name"), inner.get("description")
        if kind == "function":
            tools.append(function_tool(name, description, inner.get("parameters"), where))
        else:
            tools.append(freeform_tool(name, description, inner.get("format"), f"{where}.custom"))
    return tuple(tools), len(declared) - len(tools)


def anthropic_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A typed tool of Anthropic's as a function. Raises Problem 400 for one that is not in this table."""
    kind = tool.get("type")
    if not isinstance(kind, str) or kind not in ANTHROPIC:
        raise unknown(kind, where, "a function tool of your own, with a name and an input_schema and no type")
    name, description, parameters = ANTHROPIC[kind]
    if tool.get("name", name) != name:
        raise bad_request(f"{where}: a tool of the type {kind} must have the name {quoted(name)}", "tools")
    check_keys(tool, Form.TYPED, where)
    return function_tool(name, description, parameters, where)


def unknown(kind: object, where: str, own: str = "a function tool with a name and its parameters") -> Problem:
    """400: a tool of an unknown type. `own`: the wire's form of a client's own tool."""
    if kind is None:
        return bad_request(f"{where} has no type: declare it as {own}", "tools")
    shown_kind = str(kind)[:64]
    if any(shown_kind.startswith(prefix) for prefix in _PICTURES):
        return bad_request(
            f"{where} is of the type {quoted(shown_kind)}, which answers with pictures, and this policy reads text only: "
            "declare function tools that answer with text",
            "tools",
        )
    return bad_request(
        f"{where} is of the type {quoted(shown_kind)}, which is not known here: declare it as {own}",
        "tools",
    )
