"""Recorded messages as a conversation, and as chat messages in OpenAI's form: for exports, the public API, and a step's request."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TOOLS = "tools"  # the role of the entry with the tools in a prompt


class RecordedTexts(Protocol):
    """A step's texts as recorded: what its request appended, and its reply."""

    @property
    def idx(self) -> int: ...

    @property
    def appended(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def reply(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class ConversationCall:
    """A tool call; `id` is made from the step's idx, in the gateway's form: call_s4_0 is the first call of step 4."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationMessage:
    """One message. `step`: the step that replied with it. `answers`: the id of the call that a tool's message answers, if known."""

    role: str
    text: str
    reasoning: str | None = None
    calls: tuple[ConversationCall, ...] = ()
    answers: str | None = None
    step: int | None = None


class History:
    """A conversation that grows step by step, with what tells which call a tool's message answers. `messages` is only ever appended to."""

    def __init__(self, messages: Iterable[ConversationMessage] = ()) -> None:
        self.messages = list(messages)
        self._called = [each.calls for each in self.messages if each.calls]
        self._waiting = _open(self.messages)

    def add(self, step: RecordedTexts) -> None:
        """Append the messages that the request of `step` added. A tool's message answers the call that its record names; if an old record names
        none, it answers the oldest open call of the last reply."""
        for number, message in enumerate(step.appended):
            role = str(message.get("role"))
            if role == TOOLS:
                continue
            calls = _calls(message, f"call_h{step.idx}m{number}")
            self._call(calls)
            answers = _answered(message, self._called, self._waiting) if role == "tool" else None
            self.messages.append(
                ConversationMessage(
                    role=role,
                    text=_text(message),
                    reasoning=message.get("reasoning"),
                    calls=calls,
                    answers=answers,
                )
            )

    def reply(self, step: RecordedTexts) -> None:
        """Append the policy's answer."""
        message = reply(step)
        self.messages.append(message)
        self._waiting = []
        self._call(message.calls)

    def _call(self, calls: tuple[ConversationCall, ...]) -> None:
        if calls:
            self._called.append(calls)
            self._waiting = [call.id for call in calls]


def _answered(
    message: Mapping[str, Any], called: Sequence[tuple[ConversationCall, ...]], waiting: list[str]
) -> str | None:
    """The id of the call whose result `message` is; None if the named call is not in the history."""
    if "answers" not in message:
        return waiting.pop(0) if waiting else None
    reference = message["answers"]
    if reference is None or int(reference.get("back", 0)) >= len(called):
        return None
    calls = called[-1 - int(reference.get("back", 0))]
    if int(reference["call"]) >= len(calls):
        return None
    answers = calls[int(reference["call"])].id
    if answers in waiting:
        waiting.remove(answers)
    return answers


def reply(step: RecordedTexts) -> ConversationMessage:
    """The policy's answer, as parsed."""
    message = step.reply
    return ConversationMessage(
        role="assistant",
        text=_text(message),
        reasoning=message.get("reasoning"),
        calls=_calls(message, f"call_s{step.idx}"),
        answers=None,
        step=step.idx,
    )


def _open(so_far: Sequence[ConversationMessage]) -> list[str]:
    answered = {each.answers for each in so_far}
    last = next((each for each in reversed(so_far) if each.role == "assistant"), None)
    return [call.id for call in last.calls if call.id not in answered] if last else []


def _calls(message: Mapping[str, Any], stem: str) -> tuple[ConversationCall, ...]:
    found = []
    for number, call in enumerate(message.get("tool_calls") or []):
        arguments = call.get("arguments")
        mapping = arguments if isinstance(arguments, dict) else {"input": arguments}
        found.append(ConversationCall(f"{stem}_{number}", str(call.get("name")), mapping))
    return tuple(found)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "" if content is None else str(content)


def chat_message(recorded: ConversationMessage) -> dict[str, Any]:
    """One message, in the form of `scaffolds.base.Message`. Arguments of calls are JSON text."""
    message: dict[str, Any] = {"role": recorded.role, "content": recorded.text}
    if recorded.reasoning is not None:
        message["reasoning_content"] = recorded.reasoning
    if recorded.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in recorded.calls
        ]
    if recorded.answers is not None:
        message["tool_call_id"] = recorded.answers
    return message
