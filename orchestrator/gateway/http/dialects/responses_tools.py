"""The tools of the Responses wire as function tools: functions, custom tools, typed tools, and namespaces of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.gateway.http.dialects.tool_names import ToolNames, joined
from orchestrator.gateway.http.dialects.tools import of_provider, unknown
from orchestrator.gateway.messages.foreign_keys import Form, check_environment, check_keys
from orchestrator.gateway.messages.requests import freeform_tool, function_tool, tool_list
from orchestrator.gateway.messages.typed_tools import RESPONSES
from orchestrator.gateway.problems import Problem, bad_request


def read_tools(
    raw: Sequence[tuple[str, Mapping[str, Any]]], names: ToolNames
) -> Iterator[Mapping[str, Any] | None]:
    """Convert tools, given with their places, to function tools; None for each one that would run at a provider."""
    for where, tool in raw:
        if tool.get("type") == "namespace":
            inner, namespace = tool_list(tool.get("tools")), tool.get("name")
            if not isinstance(namespace, str) or not namespace:
                raise bad_request(f"{where} is a namespace without a name", "tools")
            check_keys(tool, Form.NAMESPACE, where)
            for j, member in enumerate(inner):
                yield _tool(member, namespace, names, f"{where}.tools[{j}]")
        else:
            yield _tool(tool, None, names, where)


def tools_of_the_past(raw: Any, names: ToolNames) -> Iterator[Mapping[str, Any] | None]:
    """The same for tools that came with a history. They are never refused: None for each tool that cannot be shown."""
    for tool in raw if isinstance(raw, list) else [raw]:
        before = len(names)
        try:
            yield from list(
                read_tools([("a tool of the input", nested) for nested in tool_list([tool])], names)
            )
        except Problem:
            names.keep_first(before)
            yield None


def _tool(
    tool: Mapping[str, Any], namespace: str | None, names: ToolNames, where: str
) -> Mapping[str, Any] | None:
    kind, name, description = tool.get("type"), tool.get("name"), tool.get("description")
    if of_provider(tool):
        return None
    if isinstance(kind, str) and kind in RESPONSES and namespace is None:
        check_keys(tool, Form.TYPED, where)
        check_environment(tool, where)
        name, description, parameters = RESPONSES[kind]
        return names.add(None, name, kind, function_tool(name, description, parameters, where))
    if kind not in ("function", "custom"):
        raise unknown(kind, where)
    check_keys(tool, Form.RESPONSES if kind == "function" else Form.RESPONSES_CUSTOM, where)
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where} has no name", "tools")
    flat = joined(namespace, name)
    if kind == "function":
        read = function_tool(flat, description, tool.get("parameters"), where)
    else:
        read = freeform_tool(flat, description, tool.get("format"), where)
    return names.add(namespace, name, kind, read)
