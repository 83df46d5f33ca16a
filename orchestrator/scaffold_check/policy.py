"""Replies of the scripted policy: text, tool calls that fit whatever tools a program offers, and what goes wrong on purpose."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.scaffold_check.seen import OfferedTool, Seen

_SHELLS = (
    "bash", "shell", "exec_command", "shell_command", "run_shell_command", "execute_command", "terminal", "execute", "run",
)  # fmt: skip
_COMMANDS = ("command", "cmd", "script", "code")
_SUB_AGENTS = ("task", "agent", "subagent", "spawn_agent", "delegate")
SUB_TASK = "say that the side work is done"
TURN_END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Reply:
    """One action. `raw` replaces what it would be rendered to; `cut` ends it by length before its last `cut` characters; `after_s` is how
    long the rollout server keeps silent before it."""

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    raw: str | None = None
    cut: int = 0
    after_s: float = 0.0

    @property
    def finish(self) -> Literal["stop", "length"]:
        return "length" if self.cut else "stop"

    def rendered(self) -> str:
        """The action in the check policy's own format (ChatML with Hermes tool calls), end token included unless it is cut."""
        if self.raw is not None:
            return self.raw + TURN_END
        calls = "".join(
            "\n<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
            for name, arguments in self.calls
        )
        whole = f"<think>\nso\n</think>\n\n{self.text}{calls}"
        if not self.text:
            whole = whole.replace("\n\n\n<tool_call>", "\n\n<tool_call>", 1)
        return whole[: -self.cut] if self.cut else whole + TURN_END


def shell_tool(tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """The tool that runs a command."""
    by_name = {tool.name.lower(): tool for tool in tools if _command_key(tool)}
    named = next((by_name[name] for name in _SHELLS if name in by_name), None)
    return named or next(iter(by_name.values()), None)


def sub_agent_tool(tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """The tool that gives work to a sub-agent."""
    return next((tool for tool in tools if tool.name.lower() in _SUB_AGENTS and tool.schema), None)


def shell_call(tools: Sequence[OfferedTool], command: str) -> tuple[str, Mapping[str, Any]]:
    """A call that runs `command`."""
    tool = shell_tool(tools)
    assert tool is not None and tool.schema is not None
    key = _command_key(tool)
    wants_list = tool.schema["properties"][key].get("type") == "array"
    return tool.name, _filled(tool, {key: ["bash", "-c", command] if wants_list else command})


def sub_agent_call(tool: OfferedTool, number: int) -> tuple[str, Mapping[str, Any]]:
    """A call that starts a sub-agent."""
    assert tool.schema is not None
    texts = {
        key: f"{SUB_TASK}, number {number}"
        for key in ("prompt", "message", "task", "instructions")
        if key in tool.schema.get("properties", {})
    }
    return tool.name, _filled(tool, texts)


def is_sub_agent(seen: Seen) -> bool:
    """Whether a request belongs to a conversation that `sub_agent_call` began."""
    return SUB_TASK in seen.asked


def _command_key(tool: OfferedTool) -> str:
    properties = (tool.schema or {}).get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    return next((key for key in _COMMANDS if key in known), "")


def _filled(tool: OfferedTool, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """`given`, and something that its schema allows for everything else that is required."""
    assert tool.schema is not None
    properties = tool.schema.get("properties", {})
    missing = [key for key in tool.schema.get("required", ()) if key not in given]
    return {**given, **{key: _any(properties.get(key, {})) for key in missing}}


def _any(schema: Mapping[str, Any]) -> Any:
    if allowed := schema.get("enum"):
        return allowed[0]
    by_type: dict[str, Any] = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}
    kind = schema.get("type")
    found = by_type.get(kind[0] if isinstance(kind, list) else str(kind))
    return "general" if found is None else found
