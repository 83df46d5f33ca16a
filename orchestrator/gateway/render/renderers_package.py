"""A family that the `renderers` package supports: its class renders openings and single turns, its bridge the ids after an action.

The bridge adds the same ids to a dummy base as to any turn that ended, so a call costs only its new turns, regardless of the history's length.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.render.base import CallSyntax, Markers, Tool, close
from orchestrator.gateway.render.tokenizer import TokenizerAdapter


class BridgedRenderer:
    """Shared by the families. A subclass chooses the class and the tokens, and handles its assistant turns' particularities."""

    starts_in_thinking = False
    extends = True
    call_syntax: CallSyntax = "json"

    def __init__(
        self,
        tokenizer: TokenizerAdapter,
        inner: Any,
        *,
        start: str,
        end: str,
        markers: tuple[str, str, str, str],
        context: int,
        tools_in_prompt: bool,
    ) -> None:
        self.context, self.tools_in_prompt = context, tools_in_prompt
        self._tokenizer, self._inner, self.longest = tokenizer, inner, tokenizer.longest
        self._start, self._end = tokenizer.token(start), tokenizer.token(end)
        self.stop_ids = frozenset(inner.get_stop_token_ids())
        think_open, think_close, call_open, call_close = (tokenizer.token(text) for text in markers)
        self.markers = Markers(
            think_open=think_open, think_close=think_close, call_open=call_open, call_close=call_close
        )
        self._question = {"role": "user", "content": "x"}
        self._base: list[int] = list(inner.render_ids([self._question]))
        with_prompt = list(inner.render_ids([self._question], add_generation_prompt=True))
        assert with_prompt[: len(self._base)] == self._base
        self.prompt = with_prompt[len(self._base) :]
        self._boundary = tokenizer.encode("\n")

    def opening(self, turns: Sequence[Turn], tools: Sequence[Tool], *, asking: bool) -> list[int]:
        visible_tools = [self._tokenizer.guarded(tool) for tool in tools] if self.tools_in_prompt else []
        # Without a turn: the ids before a question.
        messages = [chat_form(turn, self._tokenizer) for turn in turns] or [self._question]
        ids = list(self._inner.render_ids(messages, tools=visible_tools or None))
        if not turns:
            ids = ids[: len(ids) - 1 - ids[::-1].index(self._start)]
        return ids + self.prompt if asking else ids

    def between(
        self, action: Sequence[int], turns: Sequence[Turn], *, asking: bool, caller: Turn | None = None
    ) -> list[int]:
        closing = close(action, self._end, self.stop_ids, self.markers, self.starts_in_thinking)
        if not turns:
            return [*closing, *self._boundary, *(self.prompt if asking else ())]
        messages = [chat_form(turn, self._tokenizer) for turn in turns]
        bridged = self._inner.bridge_to_next_turn(self._base, [self._end], messages)
        assert bridged is not None, "the bridge takes every turn but the assistant's"
        base = [*self._base, self._end]
        added = list(bridged.token_ids[len(base) :])
        assert bridged.token_ids[: len(base)] == base
        assert added[-len(self.prompt) :] == self.prompt
        return [*closing, *(added if asking else added[: -len(self.prompt)])]

    def given(self, turn: Turn) -> list[int]:
        ids = list(self._inner.render_ids(self._around(chat_form(turn, self._tokenizer))))
        return ids[len(self._base) : ids.index(self._end, len(self._base)) + 1]

    def action(self, turn: Turn) -> list[int]:
        ids = self.given(turn)
        assert ids[: len(self.prompt)] == self.prompt
        return ids[len(self.prompt) :]

    def whole(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> list[int]:
        raise AssertionError("pieces extend one another: nothing is rendered whole")

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def measured(self, texts: Iterable[str], most: int) -> int:
        return self._tokenizer.measured(texts, most)

    def _around(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """A conversation that renders an assistant message as in the middle of any conversation, with its reasoning."""
        return [self._question, message]


def chat_form(turn: Turn, tokenizer: TokenizerAdapter) -> dict[str, Any]:
    """The message in the templates' form: arguments as mappings, content never null, quoted special tokens guarded."""
    message: dict[str, Any] = {"role": turn.role, "content": tokenizer.guard(turn.text)}
    if turn.role == "assistant":
        message["reasoning_content"] = tokenizer.guard(turn.reasoning or "")
        message["tool_calls"] = [
            {
                "type": "function",
                "function": {
                    "name": tokenizer.guard(call.name),
                    "arguments": tokenizer.guarded(call.mapping()),
                },
            }
            for call in turn.calls
        ]
    return message
