"""Tool calls of the scripted policy that fit any tools of a program."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.scaffold_check.seen import OfferedTool, SeenRequest

_SHELLS = (
    "bash", "shell", "exec_command", "shell_command", "run_shell_command", "execute_command", "terminal", "execute", "run",
)  # fmt: skip
_COMMANDS = ("command", "cmd", "script", "code")
_SUB_AGENTS = ("task", "agent", "subagent", "spawn_agent", "delegate")
SUB_TASK = "say that the side work is done"


def shell_tool(tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """The tool that runs a command."""
    by_name = {tool.name.lower(): tool for tool in tools if _command_key(tool)}
    shell = next((by_name[name] for name in _SHELLS if name in by_name), None)
    return shell or next(iter(by_name.values()), None)


def sub_agent_tool(tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """The tool that delegates work to a sub-agent."""
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


def is_sub_agent(seen: SeenRequest) -> bool:
    """Whether a request belongs to a conversation that `sub_agent_call` started."""
    return SUB_TASK in seen.first_user_text


def _command_key(tool: OfferedTool) -> str:
    properties = (tool.schema or {}).get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    return next((key for key in _COMMANDS if key in known), "")


def _filled(tool: OfferedTool, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """`given`, plus a value allowed by the schema for every other required key."""
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
