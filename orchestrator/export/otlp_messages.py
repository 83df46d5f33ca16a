"""Conversations as attributes of spans: the conventions' JSON of messages, and text cut to the attribute limit."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.queries.chat import ConversationMessage

# The limit of one attribute's text in UTF-8; a span has at most five long ones and stays far below 1 MiB.
ATTRIBUTE_BYTES = 2**16


def short(text: str, most: int) -> str:
    """The beginning of `text` in at most `most` bytes of UTF-8, whole characters."""
    return text if len(text) * 4 <= most else text.encode()[:most].decode(errors="ignore")


def newest(conversation: Sequence[ConversationMessage], finish: str | None) -> str:
    """As `messages`, within ATTRIBUTE_BYTES: long texts are cut first, then the oldest messages are left out."""
    text_limit = ATTRIBUTE_BYTES // 4
    chosen: list[ConversationMessage] = []
    bytes_left = ATTRIBUTE_BYTES
    for message in reversed(conversation):
        reasoning = short(message.reasoning, text_limit) if message.reasoning else message.reasoning
        candidate = replace(message, text=short(message.text, text_limit), reasoning=reasoning)
        bytes_left -= len(messages([candidate], finish).encode()) + 2
        if bytes_left < 0 and not chosen:  # arguments of its calls, or text that grows in JSON
            candidate = replace(
                candidate, calls=(), text=short(candidate.text, text_limit // 4), reasoning=None
            )
            bytes_left = 0
        elif bytes_left < 0:
            break
        chosen.append(candidate)
    return messages(chosen[::-1], finish)


def messages(conversation: Sequence[ConversationMessage], finish: str | None = None) -> str:
    """The conventions' JSON of messages: a role and parts."""
    found = []
    for message in conversation:
        parts: list[dict[str, Any]] = []
        if message.reasoning:
            parts.append({"type": "reasoning", "content": message.reasoning})
        if message.role == "tool":
            parts.append({"type": "tool_call_response", "id": message.answers, "response": message.text})
        elif message.text:
            parts.append({"type": "text", "content": message.text})
        parts += [
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": dict(call.arguments)}
            for call in message.calls
        ]
        entry: dict[str, Any] = {"role": message.role, "parts": parts}
        if finish is not None:
            entry["finish_reason"] = "tool_call" if message.calls else finish
        found.append(entry)
    return json.dumps(found, ensure_ascii=False)
