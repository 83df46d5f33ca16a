"""The input side of the Messages wire: converts system prompt, content blocks and tools to the chat form.

| block | becomes |
|---|---|
| text | text |
| thinking | the assistant's reasoning; a signature of ours names the step |
| redacted_thinking, …_tool_use and …_tool_result of a provider's tools | nothing, counted |
| tool_use | a tool call |
| tool_result | a tool message, before the rest of its user message |
| tool_addition, tool_removal | nothing: they change the tools (`anthropic_tools.py`) |
| any other | by `content.py`: its text; or refused in the opening of a conversation, left out and counted in a history |
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.gateway.http.dialects.anthropic_tools import CHANGES, OfferedTools
from orchestrator.gateway.http.dialects.base import ChatRequest
from orchestrator.gateway.http.dialects.opaque_reasoning import signed_step
from orchestrator.gateway.messages.content import LEFT_KEY, flatten, of_unknown_role, unknown_role
from orchestrator.gateway.messages.foreign_keys import (
    ARGUMENTS,
    RESULT_IDS,
    check_key,
    check_message,
)
from orchestrator.gateway.messages.turns import STEP_KEY
from orchestrator.gateway.problems import bad_request

PSEUDO_HEADER = "x-anthropic-"
_PSEUDO_LINE = re.compile(rf"\s*{re.escape(PSEUDO_HEADER)}[^\n]*\n?")
_ROLES = ("system", "user", "assistant")


def read_request(body: Mapping[str, Any], *, past: bool = False) -> ChatRequest:
    """The conversation and tools of a request body. Raises Problem 400 naming the error. `past`: the session has a step."""
    raw = body.get("messages")
    if not isinstance(raw, list) or not raw:
        raise bad_request("messages must be a non-empty list", "messages")
    messages: list[dict[str, Any]] = []
    if system := system_text(body.get("system")):
        messages.append({"role": "system", "content": system})
    prompt = len(messages)
    tools = OfferedTools(body.get("tools"))
    for i, message in enumerate(raw):
        if not isinstance(message, dict):
            raise bad_request(f"messages[{i}] is not an object", "messages")
        spoken = past or message.get("role") == "assistant"
        kept = _without_changes(message, tools, f"messages[{i}]", past=spoken)
        if kept is not None:
            _message(kept, f"messages[{i}]", messages, past)
        past = spoken
    if len(messages) == prompt:
        raise bad_request("messages only change the tools: send a message of the user as well", "messages")
    shown = tools.shown()
    return ChatRequest(
        messages=messages,
        tools=shown,
        left_out=tools.left_out,
        all_removed=tools.any_removed and not shown,
    )


def system_text(system: Any) -> str:
    """The system prompt, one string or blocks, without the pseudo-header that Claude Code puts first. The pseudo-header differs from request to
    request, so with it no two prompts would have the same beginning."""
    if system is not None and not isinstance(system, str | list):
        raise bad_request("system must be a string or a list of text blocks", "system")
    blocks = system if isinstance(system, list) else [system]
    texts = [_without_pseudo_headers(flatten([block] if block else None, "system")[0]) for block in blocks]
    return "\n\n".join(text for text in texts if text)


def _without_pseudo_headers(text: str) -> str:
    start = 0
    while (found := _PSEUDO_LINE.match(text, start)) is not None:
        start = found.end()
    return text[start:]


def _without_changes(
    message: Mapping[str, Any], tools: OfferedTools, where: str, *, past: bool
) -> Mapping[str, Any] | None:
    """A message without its blocks that change the tools, after their effect on `tools`; None if it has no other block."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    rest = []
    for block in content:
        if isinstance(block, dict) and block.get("type") in CHANGES:
            tools.change(block, where, past=past)
        else:
            rest.append(block)
    if len(rest) == len(content):
        return message
    return {**message, "content": rest} if rest else None


def _message(message: Mapping[str, Any], where: str, messages: list[dict[str, Any]], past: bool) -> None:
    """Convert one message and append the result."""
    role = message.get("role")
    known = role in _ROLES
    if not known and not past:
        raise unknown_role(role, where, _ROLES, "messages")
    check_message("anthropic", message, where, "messages")
    blocks = _blocks(message.get("content"), where, past=past or role == "assistant")
    if role == "assistant":
        _assistant(blocks, where, messages)
        return
    rest = []
    for block in blocks:
        if block.get("type") == "tool_result":
            check_key(block, "tool_use_id", RESULT_IDS, where, "messages")
            check_key(block, "content", ("output", "text"), where, "messages")
            text, missing = flatten(block.get("content"), where, past=True)
            if block.get("is_error") and not text.lower().startswith("error"):
                text = f"Error: {text}"
            result = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
            messages.append({**result, LEFT_KEY: missing})
        else:
            rest.append(block)
    if rest or not blocks:
        text, missing = flatten(rest, where, past=past)
        if not known:
            text, mark = of_unknown_role(role, text)
            role, missing = "user", (*missing, *mark)
        messages.append({"role": role, "content": text, LEFT_KEY: missing})


def _blocks(content: Any, where: str, *, past: bool) -> list[Mapping[str, Any]]:
    """The content of a message as blocks; a string is a text. In the `past`, null is empty, and any other part is a block of unknown type."""
    parts = content if isinstance(content, list) else [] if past and content is None else [content]
    blocks = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    sound = isinstance(content, list | str) and all(isinstance(block, dict) for block in blocks)
    if not (past or sound):
        raise bad_request(f"{where}: the content must be a string or a list of blocks", "messages")
    return [block if isinstance(block, dict) else {} for block in blocks]


def _assistant(blocks: Sequence[Mapping[str, Any]], where: str, messages: list[dict[str, Any]]) -> None:
    message: dict[str, Any] = {"role": "assistant"}
    thoughts, calls, rest = [], [], []
    for block in blocks:
        match block.get("type"):
            case "thinking":
                check_key(block, "thinking", ("text", "reasoning"), where, "messages")
                if isinstance(thinking := block.get("thinking"), str) and thinking:
                    thoughts.append(thinking)
                if (step := signed_step(block.get("signature"))) is not None:
                    message[STEP_KEY] = step
            case "tool_use":
                check_key(block, "id", RESULT_IDS, where, "messages")
                check_key(block, "input", ARGUMENTS, where, "messages")
                function = {"name": block.get("name"), "arguments": block.get("input")}
                calls.append({"id": block.get("id"), "function": function})
            case _:
                rest.append(block)
    message["content"], message[LEFT_KEY] = flatten(rest, where, past=True, shown=False)
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    messages.append(message)
