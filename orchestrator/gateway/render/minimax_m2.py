r"""MiniMax-M2: calls as `<invoke>` elements, reasoning kept in every turn, a generation prompt that ends inside the reasoning.

    ]~!b[]~b]system\n{system, or who the model is}{tools}[e~[\n
    ]~b]user\n{text}[e~[\n
    ]~b]ai\n<think>\n{reasoning}\n</think>\n\n{text}\n<minimax:tool_call>\n
    <invoke name="f">\n<parameter name="a">v</parameter>\n</invoke>\n</minimax:tool_call>[e~[\n
    ]~b]tool\n<response>{one}</response>\n<response>{another}</response>[e~[\n
    ]~b]ai\n<think>\n

(shown with a line break after each turn; the only line breaks are the `\n`.) The class of `renderers` drops the reasoning before the last
user message, as the model's own template does unless told otherwise: here no turn is rendered with a user message after it.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import structs
from renderers.configs import MiniMaxM2RendererConfig
from renderers.minimax_m2 import MiniMaxM2Renderer

from orchestrator.gateway.messages import Turn
from orchestrator.gateway.render.base import CallSyntax
from orchestrator.gateway.render.bridged import BridgedRenderer
from orchestrator.gateway.render.tokenizer import TokenizerAdapter


class MiniMaxRenderer(BridgedRenderer):
    """`model_identity` of render.json is what the model is told to be when a conversation has no system message."""

    starts_in_thinking = True
    call_syntax: CallSyntax = "invoke"

    def __init__(
        self, tokenizer: TokenizerAdapter, settings: Mapping[str, Any], *, context: int, tools_in_prompt: bool
    ) -> None:
        chosen = {key: str(settings[key]) for key in ("model_identity",) if key in settings}
        super().__init__(
            tokenizer,
            MiniMaxM2Renderer(tokenizer, MiniMaxM2RendererConfig(thinking_retention="all", **chosen)),
            start="]~b]",
            end="[e~[",
            markers=("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
            context=context,
            tools_in_prompt=tools_in_prompt,
        )

    def action(self, turn: Turn) -> list[int]:
        # The prompt has opened the reasoning, so the policy closes it even when it has none.
        said = self.said(structs.replace(turn, reasoning=turn.reasoning or "x"))
        closed = said.index(self._closes)
        thought = (
            self._tokenizer.encode(self._tokenizer.guard(turn.reasoning) + "\n") if turn.reasoning else []
        )
        return [*thought, *said[closed:]]

    @property
    def _closes(self) -> int:
        assert self.markers.think_close is not None
        return self.markers.think_close
