"""Any model, by its own chat template. Pieces come from dummy conversations; `proof.py` checks at start that they add up to the whole.

The text after an action is cut from the rendering of a dummy base followed by the new turns, so a call costs only the turns that it appends.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.gateway.messages.answers import UNKNOWN
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import bad_request
from orchestrator.gateway.render.base import CallSyntax, Markers, Tool, close
from orchestrator.gateway.render.chat_template import ChatTemplate, TemplateRefused
from orchestrator.gateway.render.renderers_package import chat_form
from orchestrator.gateway.render.tokenizer import TokenizerAdapter

WORD = "penstockbase"  # text of the dummy's assistant; no template contains it
THINK, CALLS = (
    (("<think>", "</think>"),),
    (("<tool_call>", "</tool_call>"), ("<minimax:tool_call>", "</minimax:tool_call>")),
)
SYNTAXES: tuple[tuple[CallSyntax, str], ...] = (
    ("invoke", f'<invoke name="{WORD}">'),
    ("function", f"<function={WORD}>"),
    ("json", f'"name": "{WORD}"'),
)
_ELSEWHERE = "999999999"  # the id of a call that is not in the previous message
_COUNTED = 1024  # number of sets of names whose dummy is cached
_CALL = {"type": "function", "function": {"name": WORD, "arguments": {"x": "1"}}}


class TemplateRenderer:
    """`extends` is True until the proof fails."""

    def __init__(
        self,
        tokenizer: TokenizerAdapter,
        template: ChatTemplate,
        *,
        eos: Sequence[int],
        context: int,
        tools_in_prompt: bool,
        call_syntax: str | None = None,
    ) -> None:
        self.context, self.tools_in_prompt, self.extends = context, tools_in_prompt, True
        self._tokenizer, self._template, self.longest = tokenizer, template, tokenizer.longest
        self._counted: dict[tuple[str, ...], int] = {}
        try:
            self._question = template.render([_user()], asking=False)
            self._prompt = template.render([_user()], asking=True)
            after = self._after(template.render([_user(), _assistant()], asking=False), WORD)
        except TemplateRefused as refused:
            raise ConfigurationError(
                f"the chat template of {tokenizer.name_or_path} refuses a question and an answer: {refused}"
            ) from None
        end = tokenizer.special_in(after)
        if end is None:
            raise ConfigurationError(
                f"the chat template of {tokenizer.name_or_path} ends an assistant message with no special token: "
                "where a turn ends cannot be known"
            )
        self._end, self._end_id = end, tokenizer.token(end)
        self.stop_ids = frozenset({self._end_id, *eos})
        think, call = _present(tokenizer, THINK), _present(tokenizer, CALLS)
        written = self._written_calls()
        syntax = next((name for name, sign in SYNTAXES if sign in written), None)
        if call is None or syntax is None:
            call, syntax = None, "none"
        if call_syntax is not None and call_syntax != syntax:
            raise ConfigurationError(
                f"render.json of {tokenizer.name_or_path} says that calls are written as {quoted(call_syntax)}; "
                f"its chat template writes {quoted(syntax)}"
            )
        self.call_syntax: CallSyntax = syntax
        think_open, think_close = think or (None, None)
        call_open, call_close = call or (None, None)
        self.markers = Markers(
            think_open=think_open, think_close=think_close, call_open=call_open, call_close=call_close
        )
        self._thinks = tuple(tokenizer.decode([token]) for token in think) if think else ("", "")
        tail = (
            self._prompt[len(self._question) :] if self._prompt.startswith(self._question) else self._prompt
        )
        self.starts_in_thinking = think is not None and tail.rfind(self._thinks[0]) > tail.rfind(
            self._thinks[1]
        )
        # Templates without a reasoning field render the reasoning as part of the content.
        self._embeds = think is not None and not self._shows_reasoning()

    def opening(self, turns: Sequence[Turn], tools: Sequence[Tool], *, asking: bool) -> list[int]:
        if not turns:
            raise bad_request("this model's chat template needs a message before the assistant's", "messages")
        return self._tokenizer.encode(self._rendered(turns, tools, asking))

    def between(
        self, action: Sequence[int], turns: Sequence[Turn], *, asking: bool, caller: Turn | None = None
    ) -> list[int]:
        closing = close(action, self._end_id, self.stop_ids, self.markers, self.starts_in_thinking)
        results = 0
        while results < len(turns) and turns[results].role == "tool":
            results += 1
        called = (
            tuple(self._tokenizer.guard(call.name) for call in caller.calls) if caller is not None else ()
        )
        names = (called or (WORD,) * results) if results else ()
        base = [_user(), _assistant(names)]
        text = self._text([*base, *self._forms(turns, base[1])], None, asking)
        remainder = text.split(WORD, self._words(names))[-1]
        at = remainder.find(self._end)
        if at < 0:
            raise bad_request("this model's chat template does not end the assistant's turn here", "messages")
        return [*closing, *self._tokenizer.encode(remainder[at + len(self._end) :])]

    def given(self, turn: Turn) -> list[int]:
        text = self._text([_user(), self._form(turn), _user()], None, False)
        return self._tokenizer.encode(self._until_end(text[len(self._question) :]))

    def action(self, turn: Turn) -> list[int]:
        text = self._text([_user(), self._form(turn)], None, False)
        if text.startswith(self._prompt):
            return self._tokenizer.encode(self._until_end(text[len(self._prompt) :]))
        if not self.starts_in_thinking or turn.reasoning:
            raise ConfigurationError(
                f"the chat template of {self._tokenizer.name_or_path} writes an answer that does not begin with its generation prompt"
            )
        # The prompt opens the reasoning, so the policy closes it even when it is empty.
        thoughtful = Turn(role="assistant", text=turn.text, reasoning=WORD, calls=turn.calls)
        text = self._text([_user(), self._form(thoughtful)], None, False)
        close_at = text.find(self._thinks[1], max(0, text.find(WORD)))
        return self._tokenizer.encode(self._until_end(text[close_at:]))

    def whole(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> list[int]:
        return self._tokenizer.encode(self._rendered(turns, tools, True))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def measured(self, texts: Iterable[str], most: int) -> int:
        return self._tokenizer.measured(texts, most)

    def _rendered(self, turns: Sequence[Turn], tools: Sequence[Tool], asking: bool) -> str:
        visible_tools = [self._tokenizer.guarded(tool) for tool in tools] if self.tools_in_prompt else None
        return self._text(self._forms(turns, None), visible_tools, asking)

    def _text(self, messages: Sequence[Mapping[str, Any]], tools: Any, asking: bool) -> str:
        try:
            return self._template.render(messages, tools, asking=asking)
        except TemplateRefused as refused:
            raise bad_request(
                f"the model's chat template refuses the conversation: {refused}", "messages"
            ) from None

    def _forms(self, turns: Sequence[Turn], caller: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """Messages with the ids of their calls, which some templates need; `caller` is the assistant message before them. A result has the id
        and the name of the call that it answers. A result without `answers` gets those of the first call that has no result yet."""
        found: list[dict[str, Any]] = []
        calls = list((caller or {}).get("tool_calls", ()))
        unanswered = list(calls)
        for turn in turns:
            message = self._form(turn)
            if turn.role == "assistant":
                calls = list(message.get("tool_calls", ()))
                unanswered = list(calls)
            elif turn.role == "tool":
                message |= self._answering(turn, calls, unanswered)
            found.append(message)
        return found

    def _answering(
        self, turn: Turn, calls: Sequence[Mapping[str, Any]], waiting: list[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The id and the name of the call that `turn` answers; the call is removed from `waiting`."""
        answers = turn.answers
        if answers is None:
            call = waiting.pop(0) if waiting else None
        elif answers == UNKNOWN:
            return {"tool_call_id": _ELSEWHERE, "name": ""}
        elif answers.back or answers.call >= len(calls):
            return {"tool_call_id": _ELSEWHERE, "name": self._tokenizer.guard(answers.name)}
        else:
            call = calls[answers.call]
            if call in waiting:
                waiting.remove(call)
        return {} if call is None else {"tool_call_id": call["id"], "name": call["function"]["name"]}

    def _form(self, turn: Turn) -> dict[str, Any]:
        message = chat_form(turn, self._tokenizer)
        if turn.role != "assistant":
            return message
        if self._embeds and turn.reasoning:
            open_marker, close_marker = self._thinks
            reasoning = message.pop("reasoning_content")
            message["content"] = f"{open_marker}\n{reasoning}\n{close_marker}\n\n{message['content']}"
        for key in [key for key in ("reasoning_content", "tool_calls") if not message.get(key)]:
            message.pop(key, None)
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"{number:09d}"
        return message

    def _words(self, names: tuple[str, ...]) -> int:
        """Number of occurrences of the dummy's word in its rendering, calls included. The text after the last one belongs to the new turns."""
        if (known := self._counted.get(names)) is not None:
            return known
        if len(self._counted) >= _COUNTED:  # the policy chooses the names
            self._counted.clear()
        counted = self._counted[names] = self._text([_user(), _assistant(names)], None, False).count(WORD)
        return counted

    def _until_end(self, text: str) -> str:
        return text[: text.index(self._end) + len(self._end)]

    @staticmethod
    def _after(text: str, word: str) -> str:
        _, found, after = text.rpartition(word)
        if not found:
            raise TemplateRefused("it leaves out what the assistant says")
        return after

    def _written_calls(self) -> str:
        try:
            return self._template.render(
                [_user(), {**_assistant(), "tool_calls": [{**_CALL, "id": "000000000"}]}], asking=False
            )
        except TemplateRefused:
            return ""

    def _shows_reasoning(self) -> bool:
        try:
            thinking = {**_assistant(), "reasoning_content": WORD[::-1]}
            return WORD[::-1] in self._template.render([_user(), thinking], asking=False)
        except TemplateRefused:
            return False


def _user() -> dict[str, Any]:
    return {"role": "user", "content": "x"}


def _assistant(names: Sequence[str] = ()) -> dict[str, Any]:
    """A dummy. The arguments of its calls contain the word too, so that the text after its last occurrence also follows the calls."""
    message: dict[str, Any] = {"role": "assistant", "content": WORD}
    if names:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": {"x": WORD}}, "id": f"{number:09d}"}
            for number, name in enumerate(names)
        ]
    return message


def _present(tokenizer: TokenizerAdapter, pairs: Sequence[tuple[str, str]]) -> tuple[int, int] | None:
    """The first pair of tokens that the vocabulary has."""
    for open_marker, close_marker in pairs:
        ids = tokenizer.convert_tokens_to_ids(open_marker), tokenizer.convert_tokens_to_ids(close_marker)
        if ids[0] is not None and ids[1] is not None:
            return ids[0], ids[1]
    return None
