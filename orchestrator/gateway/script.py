"""Demonstrations: what the calls of a session are answered in the place of the policy's samples."""

from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.gateway.messages import Turn

ASIDE: Mapping[str, Any] = {
    "content": "ok"
}  # to a call that is not of the conversation, and has no place in a script


class Script:
    """The replies of a demonstration, of which the first `said` are on record. Each is said once, also where calls run at once: a call
    takes the next one when it begins, and puts it back when nothing was recorded of it."""

    def __init__(self, replies: Sequence[Mapping[str, Any]], said: int) -> None:
        self._replies = replies
        self._left = list(range(said, len(replies)))

    def take(self) -> int | None:
        """The number of the next reply, which is nobody else's from here on; None when there is none left."""
        return self._left.pop(0) if self._left else None

    def put_back(self, number: int) -> None:
        """It was not said: the next call takes it."""
        insort(self._left, number)

    def turn(self, number: int | None, turns: Sequence[Turn]) -> Turn:
        """The reply of that number to `turns`; None: of a call that is not of the conversation."""
        return scripted_turn(ASIDE if number is None else self._replies[number], turns)


def scripted_turn(reply: Mapping[str, Any], turns: Sequence[Turn]) -> Turn:
    """A scripted reply as an assistant turn. With `copy_observation` the text of the last tool result (or user message) is its content,
    or where it calls tools, what `{observation}` in their arguments stands for."""
    text, calls = reply.get("content") or "", reply.get("tool_calls")
    if reply.get("copy_observation"):
        heard = [turn.text for turn in turns if turn.role == "tool"] or [turns[-1].text]
        seen = heard[-1].strip()
        text = text if calls else seen
        calls = calls and [{**call, "arguments": _filled(call["arguments"], seen)} for call in calls]
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
