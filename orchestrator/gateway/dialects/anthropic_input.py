"""The input side of the Messages wire: system prompt, content blocks and tools become the chat form.

| block | becomes |
|---|---|
| text | text |
| thinking | the assistant's reasoning; its signature names the step when we signed it |
| redacted_thinking, server_tool_use, …_tool_result of a provider's tools | nothing, counted |
| tool_use | a tool call |
| tool_result | a tool message, before the rest of its user message |
| image, document | refused |
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.gateway.dialects.base import Spoken
from orchestrator.gateway.dialects.keepsakes import signed_step
from orchestrator.gateway.messages import STEP_KEY, flatten
from orchestrator.gateway.problems import bad_request
from orchestrator.gateway.requests import function_tool, tool_list

PSEUDO_HEADER = "x-anthropic-"


def read_request(body: Mapping[str, Any]) -> Spoken:
    """The conversation and tools of a request body. Problem 400 naming what is wrong."""
    raw = body.get("messages")
    if not isinstance(raw, list) or not raw:
        raise bad_request("messages must be a non-empty list", "messages")
    messages: list[dict[str, Any]] = []
    if system := system_text(body.get("system")):
        messages.append({"role": "system", "content": system})
    left_out = 0
    for i, message in enumerate(raw):
        if not isinstance(message, dict):
            raise bad_request(f"messages[{i}] is not an object", "messages")
        left_out += _message(message, f"messages[{i}]", messages)
    tools, stripped = _tools(body.get("tools"))
    servers = body.get("mcp_servers")  # remote tools, outside the sandbox
    left_out += stripped + (len(servers) if isinstance(servers, list) else 0)
    return Spoken(messages, tools, left_out)


def system_text(system: Any) -> str:
    """The system prompt, one string or blocks, without the pseudo-header that Claude Code puts first: it differs from request to
    request, so that no two prompts would begin alike."""
    blocks = system if isinstance(system, list) else [system]
    texts = [_without_pseudo_headers(flatten([block] if block else None, "system")[0]) for block in blocks]
    return "\n\n".join(text for text in texts if text)


def _without_pseudo_headers(text: str) -> str:
    while text.lstrip().startswith(PSEUDO_HEADER):
        text = text.lstrip().partition("\n")[2]
    return text


def _tools(raw: Any) -> tuple[Sequence[Mapping[str, Any]], int]:
    """(function tools, tools left out): those with a type of Anthropic's own have no schema to show, and most run on its servers."""
    given = tool_list(raw)
    tools = [
        function_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"), f"tools[{i}]")
        for i, tool in enumerate(given)
        if tool.get("type") in (None, "custom")
    ]
    return tools, len(given) - len(tools)


def _message(message: Mapping[str, Any], where: str, messages: list[dict[str, Any]]) -> int:
    """Append what one message becomes; returns how many parts were left out."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise bad_request(f"{where} has the unknown role {role!r}", "messages")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise bad_request(f"{where}: the content must be a string or a list of blocks", "messages")
    if role == "assistant":
        return _assistant(blocks, where, messages)
    left_out, rest = 0, []
    for block in blocks:
        if block.get("type") == "tool_result":
            text, missing = flatten(block.get("content"), where)
            left_out += missing
            if block.get("is_error") and not text.lower().startswith("error"):
                text = f"Error: {text}"
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        else:
            rest.append(block)
    if rest or not blocks:
        text, missing = flatten(rest, where)
        left_out += missing
        messages.append({"role": role, "content": text})
    return left_out


def _assistant(blocks: Sequence[Mapping[str, Any]], where: str, messages: list[dict[str, Any]]) -> int:
    said: dict[str, Any] = {"role": "assistant"}
    thoughts, calls, rest = [], [], []
    for block in blocks:
        match block.get("type"):
            case "thinking":
                if isinstance(thought := block.get("thinking"), str) and thought:
                    thoughts.append(thought)
                if (step := signed_step(block.get("signature"))) is not None:
                    said[STEP_KEY] = step
            case "tool_use":
                function = {"name": block.get("name"), "arguments": block.get("input")}
                calls.append({"id": block.get("id"), "function": function})
            case _:
                rest.append(block)
    said["content"], left_out = flatten(rest, where)
    if thoughts:
        said["reasoning_content"] = "\n".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    messages.append(said)
    return left_out
