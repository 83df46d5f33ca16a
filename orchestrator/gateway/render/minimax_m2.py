r"""MiniMax-M2: calls as `<invoke>` elements, reasoning kept in every turn, a generation prompt that ends inside the reasoning.

    ]~!b[]~b]system\n{system, or the model's identity}{tools}[e~[\n
    ]~b]user\n{text}[e~[\n
    ]~b]ai\n<think>\n{reasoning}\n</think>\n\n{text}\n<minimax:tool_call>\n
    <invoke name="f">\n<parameter name="a">v</parameter>\n</invoke>\n</minimax:tool_call>[e~[\n
    ]~b]tool\n<response>{one}</response>\n<response>{another}</response>[e~[\n
    ]~b]ai\n<think>\n

(This listing has a line break after each turn; the real ones are only the `\n`.) By default the class of `renderers`, like the model's own
template, drops the reasoning before the last user message. Here no turn is rendered with a user message after it.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import structs
from renderers.configs import MiniMaxM2RendererConfig
from renderers.minimax_m2 import MiniMaxM2Renderer

from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.render.base import CallSyntax
from orchestrator.gateway.render.renderers_package import BridgedRenderer
from orchestrator.gateway.render.tokenizer import TokenizerAdapter


class MiniMaxRenderer(BridgedRenderer):
    """`model_identity` of render.json describes the model's identity to it when a conversation has no system message."""

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
        # The prompt opens the reasoning, so the policy closes it even when it is empty.
        ids = self.given(structs.replace(turn, reasoning=turn.reasoning or "x"))
        close_at = ids.index(self._closes)
        reasoning = (
            self._tokenizer.encode(self._tokenizer.guard(turn.reasoning) + "\n") if turn.reasoning else []
        )
        return [*reasoning, *ids[close_at:]]

    @property
    def _closes(self) -> int:
        assert self.markers.think_close is not None
        return self.markers.think_close
