"""Replies of the scripted policy: text, tool calls, and intentional errors."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.contracts.errors import ArgumentError
from orchestrator.contracts.marks import Finish
from orchestrator.contracts.quote import quoted

TURN_END = "<|im_end|>"
TURN = "<|im_start|>assistant"  # each reply of the history begins with it, and so does the prompt's end


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One action. `calls`: (name of a tool, its arguments). `raw` replaces its rendered text; `cut` ends it by length before its last `cut`
    characters; `after_s` is the delay of the rollout server before it. Raises ArgumentError for a value of another type."""

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    raw: str | None = None
    cut: int = 0
    after_s: float = 0.0

    def __post_init__(self) -> None:
        for name, text in (("text", self.text), ("raw", "" if self.raw is None else self.raw)):
            if not isinstance(text, str) or not _is_unicode(text):
                raise ArgumentError(name, f"must be a string of Unicode, not {quoted(text)}")
        if not isinstance(self.calls, Sequence) or not all(map(_is_call, self.calls)):
            raise ArgumentError(
                "calls", f'must be a list such as [("bash", {{"command": "ls"}})], not {quoted(self.calls)}'
            )
        if isinstance(self.cut, bool) or not isinstance(self.cut, int) or self.cut < 0:
            raise ArgumentError("cut", f"must be a number of characters from 0, not {quoted(self.cut)}")
        after = self.after_s
        if isinstance(after, bool) or not isinstance(after, int | float) or not after >= 0:
            raise ArgumentError("after_s", f"must be a number of seconds from 0, not {quoted(after)}")

    @property
    def finish(self) -> Finish:
        """The end of the action: `length` if it is cut, else `stop`."""
        return Finish.LENGTH if self.cut else Finish.STOP

    def rendered(self) -> str:
        """The action in the check policy's own format (ChatML with Hermes tool calls), end token included unless it is cut."""
        if self.raw is not None:
            return self.raw + TURN_END
        calls = "".join(
            "\n<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
            for name, arguments in self.calls
        )
        full_text = f"<think>\nso\n</think>\n\n{self.text}{calls}"
        if not self.text:
            full_text = full_text.replace("\n\n\n<tool_call>", "\n\n<tool_call>", 1)
        return full_text[: -self.cut] if self.cut else full_text + TURN_END


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _is_call(call: Any) -> bool:
    """Whether it is the name of a tool with arguments that JSON can hold."""
    match call:
        case (str() as name, Mapping() as arguments) if _is_unicode(name):
            try:
                json.dumps(arguments)
            except (TypeError, ValueError, RecursionError):
                return False
            return True
    return False


def by_turn(replies: Sequence[Reply]) -> Callable[[str], Reply]:
    """A policy that gives each conversation these replies in order, and the last one again afterwards. ValueError without replies.

    It counts the turns of the prompt, so concurrent rollouts and repeated requests get the same replies.

    >>> policy = by_turn([Reply(text="a"), Reply(text="b")])
    >>> policy(TURN).text, policy(f"{TURN} x {TURN}").text, policy(TURN * 3).text
    ('a', 'b', 'b')
    """
    if not replies:
        raise ValueError("a scripted policy needs at least one reply, such as Reply(text='done')")
    return lambda prompt: replies[min(max(prompt.count(TURN), 1), len(replies)) - 1]
