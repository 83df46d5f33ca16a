"""The tools of the Messages wire as function tools: those of the request, and those that blocks of its messages add and remove.

| a block `tool_addition` or `tool_removal` whose `tool` is | means |
|---|---|
| a tool_definition, added | its `definition` is a tool from then on; in a history one that cannot be shown is left out, counted |
| a tool_reference, added | a tool that was removed is back; otherwise nothing, since all declared tools are shown |
| a tool_reference, removed | the policy is not shown the tool from then on, and a call of it is ill-formed |
| an mcp_tool_reference, an mcp_toolset_reference | nothing: such tools are left out |
| anything else | refused in the opening of a conversation, left out and counted in a history |
"""

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.http.dialects.tools import anthropic_tool, of_provider
from orchestrator.gateway.messages.foreign_keys import Form, check_keys
from orchestrator.gateway.messages.requests import function_tool, tool_list
from orchestrator.gateway.problems import Problem, bad_request

CHANGES: Final = ("tool_addition", "tool_removal")
"""Types of the blocks that change the tools in the middle of a conversation."""
_OF_SERVERS = ("mcp_tool_reference", "mcp_toolset_reference")


class _Named:
    """The tools of one name: the first of them, their places, and whether another one differs from it."""

    def __init__(self, tool: Mapping[str, Any]) -> None:
        self.tool = tool
        self.places: list[int] = []
        self.differ = False


class OfferedTools:
    """The tools that the policy is shown. `left_out` counts the others, which would run on a provider's servers or cannot be shown."""

    def __init__(self, raw: Any) -> None:
        declared = tool_list(raw)
        self._tools: list[Mapping[str, Any] | None] = []  # None: replaced by another one of its name
        self._by_name: dict[str, _Named] = {}
        self._removed: set[str] = set()
        for i, tool in enumerate(declared):
            if not of_provider(tool):
                self._append(_tool(tool, f"tools[{i}]"))
        self.left_out = len(declared) - len(self._tools)

    def shown(self) -> list[Mapping[str, Any]]:
        """The function tools, in the order in which they came."""
        return [tool for tool in self._tools if tool is not None and _name(tool) not in self._removed]

    @property
    def any_removed(self) -> bool:
        """Whether a tool of the conversation is not shown."""
        return not self._removed.isdisjoint(self._by_name)

    def change(self, block: Mapping[str, Any], where: str, *, past: bool) -> None:
        """Apply one block of CHANGES. Raises Problem 400 naming an error in the opening of a conversation; in the `past` it is counted."""
        try:
            self._change(block, where)
        except Problem:
            if not past:
                raise
            self.left_out += 1

    def _change(self, block: Mapping[str, Any], where: str) -> None:
        kind, tool = block["type"], block.get("tool")
        form = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or form is None:
            raise bad_request(
                f"{where} has a {kind} without a tool: send a tool_reference with its name", "messages"
            )
        if form in _OF_SERVERS:
            return
        if form == "tool_definition" and kind == "tool_addition":
            self._add(tool.get("definition"), f"{where}.{kind}.tool.definition")
        elif form == "tool_reference" and isinstance(name := tool.get("name"), str):
            self._removed -= {name}
            if kind == "tool_removal":
                self._removed |= {name}
        elif form == "tool_reference":
            raise bad_request(f"{where} has a {kind} of a tool without a name: send its name", "messages")
        else:
            raise bad_request(
                f"{where} has a {kind} of the unknown type {quoted(form)}: send a tool_reference", "messages"
            )

    def _add(self, definition: Any, where: str) -> None:
        if not isinstance(definition, dict):
            raise bad_request(f"{where} must be an object: send a tool as in tools", "messages")
        if of_provider(definition):
            self.left_out += 1
            return
        tool = _tool(definition, where)
        name = _name(tool)
        same = self._by_name.get(name)
        if same is not None and (same.differ or same.tool != tool):
            if name not in self._removed:
                raise bad_request(f"two different tools are called {quoted(name)}: rename one", "messages")
            self._keep(name, tool)
        if name not in self._by_name:
            self._append(tool)
        self._removed -= {name}

    def _append(self, tool: Mapping[str, Any]) -> None:
        same = self._by_name.setdefault(_name(tool), _Named(tool))
        same.places.append(len(self._tools))
        same.differ |= same.tool != tool
        self._tools.append(tool)

    def _keep(self, name: str, tool: Mapping[str, Any]) -> None:
        """Drop all tools of a name that are not this one."""
        kept = _Named(tool)
        for place in self._by_name.pop(name).places:
            if self._tools[place] == tool:
                kept.places.append(place)
            else:
                self._tools[place] = None
        if kept.places:
            self._by_name[name] = kept


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])


def _tool(tool: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if tool.get("type") in (None, "custom"):
        check_keys(tool, Form.ANTHROPIC, where)
        if tool.get("input_schema") is None:
            raise bad_request(f"{where} has no input_schema: send the JSON schema of its input", "tools")
        return function_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"), where)
    return anthropic_tool(tool, where)
