"""Demonstrations: the replies that a session's calls get in place of the policy's samples."""

from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.gateway.messages.turns import Turn

# The reply to a call outside the conversation, which has no place in a script.
ASIDE: Mapping[str, Any] = {"content": "ok"}


class Script:
    """The replies of a demonstration; the first `recorded` are on record. Each reply is used once, also when calls run concurrently: a call
    takes the next one when it begins, and puts it back when no step was recorded."""

    def __init__(self, replies: Sequence[Mapping[str, Any]], recorded: int) -> None:
        self._replies = replies
        self._left = list(range(recorded, len(replies)))

    def take(self) -> int | None:
        """The number of the next reply, reserved for this caller; None when none is left."""
        return self._left.pop(0) if self._left else None

    def put_back(self, number: int) -> None:
        """The reply was not used; the next call takes it."""
        insort(self._left, number)

    def generates(self, number: int | None) -> bool:
        """Whether the reply of that number takes the time of a completion."""
        return number is not None and generates(self._replies[number])

    def turn(self, number: int | None, turns: Sequence[Turn]) -> Turn:
        """The reply of that number to `turns`; None: the reply to a call outside the conversation."""
        return scripted_turn(ASIDE if number is None else self._replies[number], turns)


def generates(reply: Mapping[str, Any]) -> bool:
    """Whether the gateway generates and discards as many tokens as the scripted reply has, so that it takes the time of a completion."""
    return reply.get("generate") is True


def scripted_turn(reply: Mapping[str, Any], turns: Sequence[Turn]) -> Turn:
    """A scripted reply as an assistant turn. With `copy_observation` the text of the last tool result (or user message) is its content;
    if the reply calls tools, the text replaces `{observation}` in their arguments instead."""
    text, calls = reply.get("content") or "", reply.get("tool_calls")
    if reply.get("copy_observation"):
        observations = [turn.text for turn in turns if turn.role == "tool"] or [turns[-1].text]
        observation = observations[-1].strip()
        text = text if calls else observation
        calls = calls and [{**call, "arguments": _filled(call["arguments"], observation)} for call in calls]
    return Turn.from_plain(
        {
            "role": "assistant",
            "content": text,
            "reasoning": reply.get("reasoning"),
            "tool_calls": calls,
        }
    )


def _filled(arguments: Mapping[str, Any], seen: str) -> dict[str, Any]:
    return {
        key: value.replace("{observation}", seen) if isinstance(value, str) else value
        for key, value in arguments.items()
    }
