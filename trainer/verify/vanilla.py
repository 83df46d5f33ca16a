"""The same step by plain Hugging Face: one causal row per sample, its own attention, its own logits, nothing shared, nothing packed.

Only the formulas are the trainer's own (trainer.update.PackLoss, trainer.tree.routing): the comparison tests merging, not the loss.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.runtime.liveness import current
from trainer.loss.aggregation import normalisers
from trainer.samples import Sample
from trainer.tree.pack import pack_samples
from trainer.tree.replay import routes_of
from trainer.tree.routing import Routing, routers_of
from trainer.update import PackLoss, UpdateSettings
from trainer.verify.merged import Gradients


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Vanilla:
    """The results of one train step without merging. `forwarded` counts every token of every row; `logprobs` is [E] along the loss edges."""

    loss: float
    gradients: Gradients
    logprobs: Tensor
    forwarded: int


def detach_tree_attention(model: nn.Module) -> None:
    """Restore Hugging Face's own attention."""
    hf: Any = model
    hf.set_attn_implementation("sdpa")


def vanilla_logprobs(model: nn.Module, sample: Sample) -> Tensor:
    """log π of every action token of one sample at its temperature, [A], with gradients, in the wider of the model's dtype and float32.

    Recorded routes are replayed; the model is then attached to replay (replay.attach_replay)."""
    hf: Any = model
    ids = torch.from_numpy(sample.ids).long()
    routes = routes_of(model, sample.tokens.full_routes)
    wide = torch.promote_types(hf.dtype, torch.float32)
    if hf.dtype == wide:
        output = hf(input_ids=ids[None], use_cache=False, logits_to_keep=sample.action_len + 1, **routes)
        logits = output.logits[0, :-1]
    else:  # 16 bits: the head in float32, like the trainer's
        hidden = hf.base_model(input_ids=ids[None], use_cache=False, **routes).last_hidden_state
        head = hf.get_output_embeddings()
        bias = None if head.bias is None else head.bias.to(wide)
        logits = nn.functional.linear(
            hidden[0, sample.state_len - 1 : -1].to(wide), head.weight.to(wide), bias
        )
    logp: Tensor = (logits / sample.temperature).log_softmax(-1).gather(1, ids[sample.state_len :, None])
    return logp[:, 0]


def vanilla_gradients(model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings) -> Vanilla:
    """One train step's loss and gradient, before clipping. The model must be detached, and is left without gradients."""
    pack = pack_samples(samples, settings.budget)  # only for the order of its loss edges
    factors = normalisers(samples, settings.aggregation)
    objective = PackLoss(pack, np.array([factors[i] for i in pack.indices]), settings)
    loss, logprobs = 0.0, [torch.empty(0)]
    ends = np.cumsum([0, *(len(sample.tokens) for sample in pack.samples)]).tolist()
    ranges = [[span] for span in pairwise(ends)]  # of each row in all rows laid end to end
    routing = None
    if settings.balance:
        routing = Routing(routers_of(model), np.ones(ends[-1], np.int64), settings.balance)
        for span, sample in zip(ranges, pack.samples, strict=True):
            with torch.no_grad(), routing.watching(span):
                vanilla_logprobs(model, sample)
            routing.count()
    model.zero_grad(set_to_none=True)
    for number, sample in enumerate(pack.samples):
        current().progressed()
        rows = np.flatnonzero(pack.edges.sample == number)
        with nullcontext() if routing is None else routing.watching(ranges[number]):
            logp = vanilla_logprobs(model, sample)[torch.from_numpy(pack.edges.offset[rows])]
        part = objective(rows, logp)
        loss += part.item()
        torch.autograd.backward(part if routing is None else part + routing.loss())
        logprobs.append(logp.detach())
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return Vanilla(loss=loss, gradients=gradients, logprobs=torch.cat(logprobs), forwarded=ends[-1])
