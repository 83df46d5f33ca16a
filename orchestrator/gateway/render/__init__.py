"""Convert messages to token ids in the policy's chat format. No other code handles chat templates.

A state is composed of ids: the parent's exact full ids, then only the ids of the new messages. Sampled ids are never encoded again.

    base.py                the port, and how pieces are composed
    load.py                chooses the renderer of a model directory
    renderers_package.py   families through the `renderers` package: qwen3.py, minimax_m2.py
    templated.py           any other model, by its own chat_template.py; proof.py checks at start that this is exact
    tokenizer.py           text to ids, with quoted special tokens kept as text
"""

from orchestrator.gateway.render.base import CallSyntax, Markers, Renderer, Tool, incremental
from orchestrator.gateway.render.load import experts, load_renderer
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
]
