"""One pass of an unmodified Hugging Face causal LM over a tree plan.

`attach_tree_attention` permanently makes our function the model's attention implementation: activation checkpointing runs
layers again in the backward pass, so it must not be switched off in between. The plan is passed as the keyword `tree`
to every attention layer. No mask function is registered, so transformers builds no T² mask and looks for no packed rows.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from orchestrator.trajectory.branch import Branch
from trainer.logprobs import token_logprobs
from trainer.samples import Ids
from trainer.tree.attention import Backend, attend
from trainer.tree.path import Path
from trainer.tree.plan import FlatTree, TreePlan
from trainer.tree.replay import routes_of
from trainer.tree.support import refuse_unsupported

_NAMES: dict[Backend, str] = {
    "rectangles": "penstock_tree",
    "dense": "penstock_tree_dense",
    "flex": "penstock_tree_flex",
}
_PROBE_TOLERANCE = 1e-3  # logprobs; a wrong mask or position shows as ≥ 1e-2 even in random models
_PROBE_ROUNDINGS = 16  # of the largest logit: the error that a 16-bit model's own layers add


def attach_tree_attention(model: nn.Module, backend: Backend = "rectangles", *, probe: bool = True) -> None:
    """Make tree attention the model's attention. From then on its forward needs `tree=plan`; see `hidden_states`.

    Raises ValueError naming the feature if the model cannot be merged exactly: first by its configuration, then by a
    probe (short branching rows, alone with transformers' eager attention and merged, must agree; in training mode nothing may be random).
    A model without values cannot be probed: pass `probe=False` and probe the model elsewhere.
    """
    refuse_unsupported(model)
    hf: Any = model
    if not probe or hf.config._attn_implementation in _NAMES.values():
        hf.set_attn_implementation(_NAMES[backend])
        return
    hf.set_attn_implementation("eager")
    was_training = model.training
    model.eval()
    vocab = hf.get_input_embeddings().num_embeddings
    rows = [np.array(row, np.int32) % vocab for row in ([5, 3, 8, 1, 7, 2], [5, 3, 8, 4, 1], [5, 9])]
    with torch.no_grad():
        on_device = [torch.from_numpy(row)[None].long().to(hf.device) for row in rows]
        alone = [hf(input_ids=row, use_cache=False).logits[0] for row in on_device]
        hf.set_attn_implementation(_NAMES[backend])
        try:
            merged = _merged_logits(model, rows)
            model.train()
            with warnings.catch_warnings():
                # Reentrant checkpointing warns of frozen inputs.
                warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
                twice = _merged_logits(model, rows), _merged_logits(model, rows)
        except _Unplanned as error:
            hf.set_attn_implementation("eager")
            raise ValueError(
                f"prefix-tree merging does not support {hf.config.model_type}: it has {error.feature}"
            ) from None
        finally:
            model.train(was_training)
    largest = max(float(logits.abs().max()) for logits in alone)
    allowed = _PROBE_TOLERANCE + _PROBE_ROUNDINGS * torch.finfo(alone[0].dtype).eps * largest
    checks: list[tuple[list[Tensor], list[Tensor], str]] = [
        (alone, merged, "merged and plain logprobs of a probe differ"),
        (*twice, "two forward passes of a probe in training mode, which should do the same, differ"),
    ]
    for expected, actual, problem in checks:
        largest_error = max(
            float((_logprobs(a) - _logprobs(b)).abs().max()) for a, b in zip(expected, actual, strict=True)
        )
        if not largest_error <= allowed:
            hf.set_attn_implementation("eager")
            raise ValueError(
                f"prefix-tree merging is not exact for {hf.config.model_type}: {problem} by {largest_error:.3g}"
            )


def hidden_states(model: nn.Module, plan: TreePlan, path: Path | None = None) -> Tensor:
    """Last hidden states [T, hidden] of the plan's tokens, in flat order, before the head. A plan with a past needs its `path`."""
    base: Any = getattr(model, str(model.base_model_prefix))
    device = next(model.parameters()).device
    ids = torch.from_numpy(plan.ids).to(device).long()
    positions = torch.from_numpy(plan.position_ids).to(device)
    result = base(
        input_ids=ids[None],
        position_ids=positions[None],
        tree=plan,
        tree_path=path,
        use_cache=False,
        **routes_of(model, plan.routes),
    )
    hidden: Tensor = result.last_hidden_state[0]
    return hidden


def tree_pass(
    model: nn.Module,
    plan: TreePlan,
    path: Path,
    rows: Tensor,
    target: Tensor,
    temperature: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies [E] of `target` int64[E] after the flat positions `rows` int64[E], from one forward pass (logprobs.py)."""
    hidden = hidden_states(model, plan, path).index_select(0, rows)
    return token_logprobs(hidden, model.get_output_embeddings(), target, temperature, chunk)  # type: ignore[operator]


def pass_of(model: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """`tree_pass` of this model. For a model that is spread over ranks, it gathers the parameters (ranks/fsdp.py)."""
    method: Callable[..., tuple[Tensor, Tensor]] = getattr(model, "tree_pass", partial(tree_pass, model))
    return method


def _logprobs(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _merged_logits(model: nn.Module, rows: list[Ids]) -> list[Tensor]:
    branches = [Branch(own=row) for row in rows]
    tree = FlatTree(branches)
    hidden = hidden_states(model, tree.plan)
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    places = [torch.from_numpy(tree.locate(row, 0, len(row))).to(hidden.device) for row in branches]
    return [head(hidden[positions]) for positions in places]


class _Unplanned(ValueError):
    """Attention was called without the plan, or with a mask. `feature`: the feature of models whose layers do that."""

    def __init__(self, message: str, feature: str) -> None:
        super().__init__(message)
        self.feature = feature


def _implementation(backend: Backend) -> Any:
    def tree_attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        tree: TreePlan | None = None,
        tree_path: Path | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        if tree is None:
            raise _Unplanned(
                "this model is attached to tree attention: call it with tree=<TreePlan>",
                "layers that do not hand on to their attention what they are called with",
            )
        for name, feature in (
            ("sliding_window", "sliding-window attention"),
            ("softcap", "logit soft-capping"),
            ("s_aux", "attention sinks"),
            ("position_bias", "a position bias"),
        ):
            if options.get(name) is not None:
                raise ValueError(f"prefix-tree merging does not support {feature} ({name})")
        if dropout > 0:
            raise ValueError(f"prefix-tree merging does not support dropout ({dropout})")
        if attention_mask is not None:
            raise _Unplanned(
                "prefix-tree merging takes its visibility from the plan, not from an attention mask",
                "layers with an attention mask of their own",
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        past = None if tree_path is None else tree_path.attended(module, key, value)
        return attend(query, key, value, tree, scale, backend, past), None

    return tree_attention


for _backend, _name in _NAMES.items():
    AttentionInterface.register(_name, _implementation(_backend))
