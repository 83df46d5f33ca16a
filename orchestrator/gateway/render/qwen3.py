"""Qwen3's ChatML with Hermes tool calls; reasoning is kept in every turn (interleaved thinking)."""

from collections.abc import Mapping
from typing import Any

from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer

from orchestrator.gateway.render.renderers_package import BridgedRenderer
from orchestrator.gateway.render.tokenizer import TokenizerAdapter


class _KeepsReasoning(Qwen3Renderer):  # type: ignore[misc]
    """A renderer that keeps the reasoning of every turn, not only of those after the last user message."""

    _last_query_index = staticmethod(lambda messages: -1)


class QwenRenderer(BridgedRenderer):
    """The generation prompt is `<|im_start|>assistant\\n`: the policy opens its reasoning itself."""

    def __init__(
        self, tokenizer: TokenizerAdapter, settings: Mapping[str, Any], *, context: int, tools_in_prompt: bool
    ) -> None:
        super().__init__(
            tokenizer,
            _KeepsReasoning(tokenizer, Qwen3RendererConfig(thinking_retention="all")),
            start="<|im_start|>",
            end="<|im_end|>",
            markers=("<think>", "</think>", "<tool_call>", "</tool_call>"),
            context=context,
            tools_in_prompt=tools_in_prompt,
        )

    def _around(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        # Another turn follows, because a last turn without reasoning would get an empty reasoning block.
        return [self._question, message, self._question]
