"""`tool_choice` and its relatives on all wires: which calls a reply may make.

The gateway never forces the policy: training samples the policy's own output. A reply that breaks the rule is served as plain text and recorded
as ill-formed, like any call that does not fit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.http.dialects.tools import of_provider
from orchestrator.gateway.messages.requests import CallRule
from orchestrator.gateway.problems import bad_request

_PLAIN = {"none": CallRule(most=0), "auto": CallRule(), "required": CallRule(required=True), "any": CallRule(required=True)}  # fmt: skip
LEFT_OUT = " (a provider's own tools are left out)"
_NAMED = ("function", "custom", "tool")


def read_choice(
    body: Mapping[str, Any], names: Mapping[str, str], typed: Mapping[str, str] | None = None
) -> CallRule:
    """The rule of a request that offers tools: `names` (the wire's name → the policy's name), `typed` by their types. Raises Problem 400
    naming an invalid choice, or a choice that forces a call without tools to call."""
    choice, key = body.get("tool_choice"), "tool_choice"
    if choice is None and body.get("function_call") is not None:  # OpenAI's legacy form
        choice, key = body["function_call"], "function_call"
        choice = {"type": "function", **choice} if isinstance(choice, dict) else choice
    offered = [tool.get("type") for tool in body.get("tools") or () if isinstance(tool, dict)]
    rule = _rule(choice, key, names, typed or {}, offered)
    if rule.required and not (names if rule.names is None else rule.names):
        raise bad_request(
            f"{key} wants a call, and the policy is shown no tool that it may call"
            f"{LEFT_OUT if body.get('tools') else ''}: send function tools, or let it be auto",
            key,
        )
    single = body.get("parallel_tool_calls") is False or bool(body.get("functions"))
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True:
        single = True
    if not names:  # without tools, a call is impossible
        return CallRule(rule.most)
    return CallRule(1 if single and rule.most is None else rule.most, rule.names, rule.required)


def _rule(
    choice: Any, key: str, names: Mapping[str, str], typed: Mapping[str, str], offered: Sequence[Any]
) -> CallRule:
    """`offered`: the types of the request's tools. A tool that is neither a function nor `typed` is left out."""
    if choice is None:
        return CallRule()
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if isinstance(kind, str) and kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(choice, dict) and kind in _NAMED:
        return CallRule(names=(_named(choice, key, names),), required=True)
    if isinstance(choice, dict) and isinstance(kind, str) and kind in typed:
        return CallRule(names=(typed[kind],), required=True)
    if isinstance(choice, dict) and kind == "allowed_tools":
        inner = choice.get("allowed_tools")
        fields = inner if isinstance(inner, dict) else choice
        tools = fields.get("tools")
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise bad_request(f"{key}: allowed_tools must hold a list of tools", key)
        allowed = _allowed(tools, key, names, typed)
        return CallRule(names=allowed, required=fields.get("mode") == "required")
    if isinstance(choice, dict) and (of_provider(choice) or kind in offered):
        raise bad_request(
            f"{key} names {quoted(str(kind))}, a tool of a provider's, which is left out here: let it be auto, or name a function tool",
            key,
        )
    raise bad_request(f"{key} must be auto, none, required or name a tool of this request", key)


def _allowed(
    tools: Sequence[Mapping[str, Any]], key: str, names: Mapping[str, str], typed: Mapping[str, str]
) -> tuple[str, ...]:
    """The policy's names of allowed tools. A provider's own tools are left out, as in the list of tools."""
    found = []
    for tool in tools:
        kind = tool.get("type", "function")
        if isinstance(kind, str) and kind in typed:
            found.append(typed[kind])
        elif kind in _NAMED:
            found.append(_named(tool, key, names))
        elif not of_provider(tool):
            raise bad_request(f"{key} allows {quoted(str(kind))}, which is not a tool of this request", key)
    return tuple(found)


def _named(choice: Mapping[str, Any], key: str, names: Mapping[str, str]) -> str:
    inner = choice.get("function") or choice.get("custom")
    name = (inner if isinstance(inner, dict) else choice).get("name")
    if not isinstance(name, str) or name not in names:
        raise bad_request(f"{key} names {quoted(name)}, which no tool of this request is called", key)
    return names[name]
