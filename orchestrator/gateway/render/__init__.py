"""From messages to token ids, the policy's way. Nothing outside knows a chat template.

A state is put together on ids: the parent's exact full ids, then only what the new messages add. Nothing sampled is ever encoded again.

    base.py            the port, and how pieces are put together
    load.py            which renderer speaks for a model directory
    bridged.py         families through the `renderers` package: qwen3.py, minimax_m2.py
    templated.py       any other model, by its own chat_template.py; proof.py shows at start that this is exact
    tokenizer.py       text to ids, with quoted special tokens kept as text
"""

from orchestrator.gateway.render.base import CallSyntax, Markers, Renderer, Tool, incremental
from orchestrator.gateway.render.load import experts, load_renderer, vocabulary
from orchestrator.gateway.render.templated import TemplateRenderer
from orchestrator.gateway.render.tokenizer import TokenizerAdapter

__all__ = [
    "CallSyntax",
    "Markers",
    "Renderer",
    "TemplateRenderer",
    "TokenizerAdapter",
    "Tool",
    "experts",
    "incremental",
    "load_renderer",
    "vocabulary",
]
