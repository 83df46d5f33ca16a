"""Any causal language model of transformers, with its attention replaced by ours.

transformers lets a model call a registered attention function with the new queries, keys and values of a layer. Ours
stores and attends as for the dense models, so every such model gets continuous batching and the prefix cache without
extra code. The experts that the routers of a mixture choose are stored with the keys and values. Models that mix tokens
in other ways (state spaces, linear attention) do not fit and are refused at loading: a probe pass must reach
our function once per layer, with one shape, and only with arguments that we implement.
"""

from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.runtime.weights_digest import weights_digest
from trainer.model_directory import ModelDirectory
from trainer.serving.kv import KvShape
from trainer.serving.packing import Plan, attend, keep_routes
from trainer.tree.routing import routers_by_layer

ATTENTION = "penstock_packed"
_current: ContextVar[Plan] = ContextVar("current_plan")
_probed: ContextVar[list[tuple[int, ...]] | None] = ContextVar("probed_shapes", default=None)
HARMLESS = {"position_ids", "cache_position", "use_cache", "output_attentions", "position_bias"}
HARMLESS |= {"output_router_logits", "logits_to_keep", "position_embeddings", "is_causal"}


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls: query [1, heads, N, d], key and value [1, kv heads, N, d]."""
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    q, k, v = (x[0].transpose(0, 1).to(torch.float32) for x in (query, key, value))
    shapes = _probed.get()
    if shapes is not None:
        unknown = sorted(
            name for name, argument in others.items() if argument is not None and name not in HARMLESS
        )
        if unknown:
            raise ValueError(f"its attention takes {', '.join(unknown)}")
        shapes.append((layer, k.shape[1], k.shape[2], v.shape[2]))
        return torch.zeros(1, q.shape[0], q.shape[1], v.shape[2]), None
    scale = scaling if scaling is not None else q.shape[2] ** -0.5
    output = attend(
        _current.get(),
        layer,
        q.contiguous(),
        k,
        v,
        scale,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return output.view(1, q.shape[0], q.shape[1], v.shape[2]), None


class HfModel:
    """A transformers model in fp32 with the same interface as DenseModel."""

    def __init__(self, directory: ModelDirectory) -> None:
        """Raises ValueError, one sentence, if the directory cannot be loaded or the architecture does not fit."""
        from transformers import AttentionInterface, AutoModelForCausalLM  # heavy: only when needed
        from transformers.utils import logging

        logging.disable_progress_bar()  # stderr carries JSON lines
        AttentionInterface.register(ATTENTION, _packed_attention)
        self.config = directory.config
        self.vocab_size = directory.vocab_size
        self.digest = weights_digest(directory.weight_files)
        try:
            self._model = AutoModelForCausalLM.from_pretrained(
                str(directory.path),
                dtype=torch.float32,
                attn_implementation=ATTENTION,
                local_files_only=True,
                trust_remote_code=False,
            ).eval()
        except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
            raise ValueError(
                f"transformers cannot load {directory.path}: {str(error).partition(chr(10))[0]}"
            ) from error
        for name, tensor in self._model.state_dict().items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"{name} holds values that are not finite")
        self._top_k = 0
        for layer, router in routers_by_layer(self._model).items():
            router.register_forward_hook(partial(self._routed, layer))
        self.kv_shape = self._probe(directory)

    def _routed(self, layer: int, router: nn.Module, _: Any, answer: Any) -> None:
        """Keep a router's choice. A router that does not report its choice leaves nothing, as in a dense model."""
        chosen = answer[-1] if isinstance(answer, tuple) else None
        if not isinstance(chosen, Tensor) or chosen.dtype.is_floating_point or chosen.ndim != 2:
            return
        if _probed.get() is not None:
            self._top_k = chosen.shape[1]
        elif self.kv_shape.top_k:
            keep_routes(_current.get(), layer, chosen)

    def _probe(self, directory: ModelDirectory) -> KvShape:
        shapes: list[tuple[int, ...]] = []
        token = _probed.set(shapes)
        try:
            with torch.inference_mode():
                self._run(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
        except ValueError as error:
            raise ValueError(f"{directory.architecture} does not fit this server: {error}") from error
        finally:
            _probed.reset(token)
        text = directory.config.get("text_config", directory.config)
        layers = int(text.get("num_hidden_layers") or text["n_layer"])
        if [shape[0] for shape in shapes] != list(range(layers)) or len({shape[1:] for shape in shapes}) != 1:
            raise ValueError(
                f"{directory.architecture} does not fit this server: every layer must attend, with heads of one shape"
            )
        heads, key_dim, value_dim = shapes[0][1:]
        return KvShape(layers=layers, heads=heads, key_dim=key_dim, value_dim=value_dim, top_k=self._top_k)

    def _run(self, ids: Tensor, positions: Tensor, wanted: Tensor | None = None) -> Tensor:
        options: dict[str, Any] = {} if wanted is None else {"logits_to_keep": wanted}
        output = self._model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **options)
        return output.logits[0].to(torch.float32)  # type: ignore[no-any-return]

    def logits(self, plan: Plan) -> Tensor:
        """One pass over `plan`; fp32 [M, vocabulary] for its wanted tokens."""
        token = _current.set(plan)
        try:
            logits = self._run(plan.ids, plan.positions, plan.wanted)
            if plan.wanted is not None and len(logits) != len(plan.wanted):
                logits = logits[plan.wanted]  # a model without logits_to_keep computes all of them
            return logits
        finally:
            _current.reset(token)
