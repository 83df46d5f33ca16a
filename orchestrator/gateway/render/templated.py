"""Any model, by its own chat template. Pieces come from dummy conversations; `proof.py` shows at start whether they make up the whole.

What follows an action is cut from the rendering of a dummy base with the new turns behind it, so a call costs what it appends here too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.gateway.messages import Turn
from orchestrator.gateway.problems import bad_request
from orchestrator.gateway.render.base import CallSyntax, Markers, Tool, close
from orchestrator.gateway.render.bridged import chat_form
from orchestrator.gateway.render.chat_template import ChatTemplate, TemplateRefused
from orchestrator.gateway.render.tokenizer import TokenizerAdapter

WORD = "penstockbase"  # what the dummy's assistant says: in no template
THINK, CALLS = (("<think>", "</think>"),), (("<tool_call>", "</tool_call>"), ("<minimax:tool_call>", "</minimax:tool_call>"))  # fmt: skip
SYNTAXES: tuple[tuple[CallSyntax, str], ...] = (
    ("invoke", f'<invoke name="{WORD}">'),
    ("function", f"<function={WORD}>"),
    ("json", f'"name": "{WORD}"'),
)
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
        self._tokenizer, self._template = tokenizer, template
        self._counted: dict[int, int] = {}
        try:
            self._question = template.render([_user()], asking=False)
            self._asked = template.render([_user()], asking=True)
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
        spelled = next((name for name, sign in SYNTAXES if sign in written), None)
        if call is None or spelled is None:
            call, spelled = None, "none"
        if call_syntax is not None and call_syntax != spelled:
            raise ConfigurationError(
                f"render.json of {tokenizer.name_or_path} says that calls are written as {call_syntax!r}; "
                f"its chat template writes {spelled!r}"
            )
        self.call_syntax: CallSyntax = spelled
        self.markers = Markers(*(think or (None, None)), *(call or (None, None)))
        self._thinks = tuple(tokenizer.decode([token]) for token in think) if think else ("", "")
        tail = self._asked[len(self._question) :] if self._asked.startswith(self._question) else self._asked
        self.starts_in_thinking = think is not None and tail.rfind(self._thinks[0]) > tail.rfind(
            self._thinks[1]
        )
        # Templates that know no reasoning field pass on what stands in the content.
        self._embeds = think is not None and not self._shows_reasoning()

    def opening(self, turns: Sequence[Turn], tools: Sequence[Tool], *, asking: bool) -> list[int]:
        if not turns:
            raise bad_request("this model's chat template needs a message before the assistant's", "messages")
        return self._tokenizer.encode(self._rendered(turns, tools, asking))

    def between(self, action: Sequence[int], turns: Sequence[Turn], *, asking: bool) -> list[int]:
        ended = close(action, self._end_id, self.stop_ids, self.markers, self.starts_in_thinking)
        results = 0
        while results < len(turns) and turns[results].role == "tool":
            results += 1
        base = [_user(), _assistant(results)]
        text = self._text([*base, *self._forms(turns, base[1])], None, asking)
        behind = text.split(WORD, self._words(results))[-1]
        at = behind.find(self._end)
        if at < 0:
            raise bad_request("this model's chat template does not end the assistant's turn here", "messages")
        return [*ended, *self._tokenizer.encode(behind[at + len(self._end) :])]

    def said(self, turn: Turn) -> list[int]:
        around = self._text([_user(), self._form(turn), _user()], None, False)
        return self._tokenizer.encode(self._until_end(around[len(self._question) :]))

    def action(self, turn: Turn) -> list[int]:
        text = self._text([_user(), self._form(turn)], None, False)
        if text.startswith(self._asked):
            return self._tokenizer.encode(self._until_end(text[len(self._asked) :]))
        if not self.starts_in_thinking or turn.reasoning:
            raise ConfigurationError(
                f"the chat template of {self._tokenizer.name_or_path} writes an answer that does not begin with its generation prompt"
            )
        # The prompt has opened the reasoning, so the policy closes it even when it has none.
        thoughtful = Turn("assistant", turn.text, WORD, turn.calls)
        text = self._text([_user(), self._form(thoughtful)], None, False)
        closed = text.find(self._thinks[1], max(0, text.find(WORD)))
        return self._tokenizer.encode(self._until_end(text[closed:]))

    def whole(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> list[int]:
        return self._tokenizer.encode(self._rendered(turns, tools, True))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def _rendered(self, turns: Sequence[Turn], tools: Sequence[Tool], asking: bool) -> str:
        shown = [self._tokenizer.guarded(tool) for tool in tools] if self.tools_in_prompt else None
        return self._text(self._forms(turns, None), shown, asking)

    def _text(self, messages: Sequence[Mapping[str, Any]], tools: Any, asking: bool) -> str:
        try:
            return self._template.render(messages, tools, asking=asking)
        except TemplateRefused as refused:
            raise bad_request(
                f"the model's chat template refuses the conversation: {refused}", "messages"
            ) from None

    def _forms(self, turns: Sequence[Turn], caller: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """Messages with the ids of their calls, which some templates want; `caller` is the assistant message before them."""
        found: list[dict[str, Any]] = []
        waiting = list((caller or {}).get("tool_calls", ()))
        for turn in turns:
            message = self._form(turn)
            if turn.role == "assistant":
                waiting = list(message.get("tool_calls", ()))
            elif turn.role == "tool" and waiting:
                call = waiting.pop(0)
                message |= {"tool_call_id": call["id"], "name": call["function"]["name"]}
            found.append(message)
        return found

    def _form(self, turn: Turn) -> dict[str, Any]:
        message = chat_form(turn, self._tokenizer)
        if turn.role != "assistant":
            return message
        if self._embeds and turn.reasoning:
            opened, closed = self._thinks
            thought = message.pop("reasoning_content")
            message["content"] = f"{opened}\n{thought}\n{closed}\n\n{message['content']}"
        for key in [key for key in ("reasoning_content", "tool_calls") if not message.get(key)]:
            message.pop(key, None)
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"{number:09d}"
        return message

    def _words(self, calls: int) -> int:
        """How often the dummy's word stands in its rendering, calls included: what comes after that is the new turns'."""
        if calls not in self._counted:
            base = self._text([_user(), _assistant(calls)], None, False)
            self._counted[calls] = base.count(WORD)
        return self._counted[calls]

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
            return self._template.render([_user(), {**_assistant(), "tool_calls": [{**_CALL, "id": "000000000"}]}], asking=False)  # fmt: skip
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


def _assistant(calls: int = 0) -> dict[str, Any]:
    """A dummy. The word stands in its calls too, so that what comes after its last occurrence comes after them."""
    message: dict[str, Any] = {"role": "assistant", "content": WORD}
    if calls:
        message["tool_calls"] = [{**_CALL, "id": f"{number:09d}"} for number in range(calls)]
    return message


def _present(tokenizer: TokenizerAdapter, pairs: Sequence[tuple[str, str]]) -> tuple[int, int] | None:
    """The first pair of tokens that the vocabulary has."""
    for opened, closed in pairs:
        ids = tokenizer.convert_tokens_to_ids(opened), tokenizer.convert_tokens_to_ids(closed)
        if ids[0] is not None and ids[1] is not None:
            return ids[0], ids[1]
    return None
