"""Conversations as attributes of spans: the conventions' JSON of messages, and text as long as an attribute may be."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.export.conversation import Said

ATTRIBUTE_BYTES = (
    2**16
)  # of one attribute's text in UTF-8; a span has at most five long ones and stays far below 1 MiB


def short(text: str, most: int) -> str:
    """The beginning of `text` that has at most `most` bytes in UTF-8, whole characters."""
    return text if len(text) * 4 <= most else text.encode()[:most].decode(errors="ignore")


def newest(said: Sequence[Said], finish: str | None) -> str:
    """As `messages`, within ATTRIBUTE_BYTES: long texts lose their ends, then the oldest messages are left out."""
    most = ATTRIBUTE_BYTES // 4
    kept: list[Said] = []
    room = ATTRIBUTE_BYTES
    for message in reversed(said):
        reasoning = short(message.reasoning, most) if message.reasoning else message.reasoning
        one = replace(message, text=short(message.text, most), reasoning=reasoning)
        room -= len(messages([one], finish).encode()) + 2
        if room < 0 and not kept:  # arguments of its calls, or text that JSON makes longer
            one = replace(one, calls=(), text=short(one.text, most // 4), reasoning=None)
            room = 0
        elif room < 0:
            break
        kept.append(one)
    return messages(kept[::-1], finish)


def messages(said: Sequence[Said], finish: str | None = None) -> str:
    """The conventions' JSON of messages: a role and parts."""
    found = []
    for message in said:
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
