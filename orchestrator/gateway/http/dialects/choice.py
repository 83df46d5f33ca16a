"""`tool_choice` and its relatives on all wires: which calls a reply may make.

The gateway never forces the policy: training samples the policy's own output. A reply that breaks the rule is served as plain text and recorded
as ill-formed, like any call that does not fit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.http.dialects.tool_names import ToolNames
from orchestrator.gateway.http.dialects.tools import of_provider
from orchestrator.gateway.messages.requests import CallRule
from orchestrator.gateway.problems import bad_request

_PLAIN = {
    "none": CallRule(most=0),
    "auto": CallRule(),
    "required": CallRule(required=True),
    "any": CallRule(required=True),
}
LEFT_OUT = " (a provider's own tools are left out)"
_NAMED = ("function", "custom", "tool")
_MODES = ("auto", "required")
_SINGLE = "disable_parallel_tool_use"


def read_choice(body: Mapping[str, Any], names: ToolNames) -> CallRule:
    """The rule of a request that offers the tools `names`. Raises Problem 400 naming an invalid choice, or a choice that forces a call
    without tools to call."""
    choice, key = body.get("tool_choice"), "tool_choice"
    if body.get("function_call") is not None:  # OpenAI's legacy form
        if choice is not None:
            raise bad_request("send tool_choice or function_call, not both", "function_call")
        choice, key = body["function_call"], "function_call"
        choice = {"type": "function", **choice} if isinstance(choice, dict) else choice
    offered = [tool.get("type") for tool in body.get("tools") or () if isinstance(tool, dict)]
    if isinstance(choice, dict) and not isinstance(choice.get(_SINGLE), bool | None):
        raise bad_request(f"{key}.{_SINGLE} must be true or false", f"{key}.{_SINGLE}")
    rule = _rule(choice, key, names, offered)
    if rule.required and not (names if rule.names is None else rule.names):
        raise bad_request(
            f"{key} wants a call, and the policy is shown no tool that it may call"
            f"{LEFT_OUT if body.get('tools') else ''}: send function tools, or let it be auto",
            key,
        )
    single = body.get("parallel_tool_calls") is False or bool(body.get("functions"))
    if isinstance(choice, dict) and choice.get(_SINGLE) is True:
        single = True
    if not names:  # without tools, a call is impossible
        return CallRule(rule.most)
    return CallRule(1 if single and rule.most is None else rule.most, rule.names, rule.required)


def _rule(choice: Any, key: str, names: ToolNames, offered: Sequence[Any]) -> CallRule:
    """`offered`: the types of the request's tools. A tool that is neither a function nor typed is left out."""
    if choice is None:
        return CallRule()
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if isinstance(kind, str) and kind in _PLAIN:
        if isinstance(choice, dict):
            _only(choice, key)
        return _PLAIN[kind]
    if isinstance(choice, dict) and kind in _NAMED:
        return CallRule(names=(_named(choice, key, names),), required=True)
    if isinstance(choice, dict) and isinstance(kind, str) and kind in names.typed:
        _only(choice, key)
        return CallRule(names=(names.typed[kind],), required=True)
    if isinstance(choice, dict) and kind == "allowed_tools":
        return _some(choice, key, names)
    if kind == "namespace":
        raise bad_request(
            f"{key} names a namespace, which is not a tool: name its tools as allowed_tools", key
        )
    if isinstance(choice, dict) and (of_provider(choice) or (kind is not None and kind in offered)):
        raise bad_request(
            f"{key} names {quoted(str(kind))}, a tool of a provider's, which is left out here: let it be auto, or name a function tool",
            key,
        )
    raise bad_request(f"{key} must be auto, none, required or name a tool of this request", key)


def _only(choice: Mapping[str, Any], key: str, *own: str) -> None:
    """Raise Problem 400 naming a key that a choice of this type does not have."""
    for name, value in choice.items():
        if value is not None and name not in ("type", _SINGLE, *own):
            kind = quoted(str(choice.get("type")))
            remedy = f"send {' and '.join(own)}" if own else "leave it out, or name a tool by its type"
            raise bad_request(f"{key} of the type {kind} has no {quoted(name)}: {remedy}", key)


def _some(choice: Mapping[str, Any], key: str, names: ToolNames) -> CallRule:
    """The rule of a choice of several tools, in the form of either of OpenAI's wires."""
    fields, place = choice, key
    if isinstance(choice.get("allowed_tools"), dict):
        _only(choice, key, "allowed_tools")
        fields, place = choice["allowed_tools"], f"{key}.allowed_tools"
    _only({**fields, "type": "allowed_tools"}, key, "mode", "tools")
    tools, mode = fields.get("tools"), fields.get("mode")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise bad_request(f"{key}: allowed_tools must hold a list of tools", key)
    if mode not in _MODES:
        raise bad_request(f"{place}.mode must be one of {', '.join(_MODES)}", f"{place}.mode")
    return CallRule(names=_allowed(tools, key, names), required=mode == "required")


def _allowed(tools: Sequence[Mapping[str, Any]], key: str, names: ToolNames) -> tuple[str, ...]:
    """The policy's names of allowed tools, each once. A provider's own tools are left out, as in the list of tools."""
    found, typed = [], names.typed
    for tool in tools:
        kind = tool.get("type") or "function"
        if isinstance(kind, str) and kind in typed:
            found.append(typed[kind])
        elif kind in _NAMED:
            found.append(_named(tool, key, names, whole=False))
        elif not of_provider(tool):
            raise bad_request(f"{key} allows {quoted(str(kind))}, which is not a tool of this request", key)
    return tuple(dict.fromkeys(found))


def _named(choice: Mapping[str, Any], key: str, names: ToolNames, *, whole: bool = True) -> str:
    """The policy's name of a chosen tool. `whole`: `choice` is a choice, and not a tool's description, which may have any key."""
    kind = str(choice.get("type", "function"))
    inner = choice.get(kind)
    fields = inner if isinstance(inner, dict) else choice
    if whole:
        _only(choice, key, *((kind,) if fields is inner else ("name", "namespace")))
        _only({**fields, "type": kind}, key, "name", "namespace")
    name, namespace = fields.get("name"), fields.get("namespace")
    flat = names.chosen(name, namespace, key) if isinstance(name, str) else None
    if flat is None:
        shown = quoted(name) if not namespace else f"{quoted(name)} of the namespace {quoted(namespace)}"
        raise bad_request(f"{key} names {shown}, which no tool of this request is called", key)
    return flat
