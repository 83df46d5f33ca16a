"""The other side of every exactness test: plain Hugging Face, one causal row per sample, the formula written out once more.

    loss, gradients = alone(model, samples)                  the reference
    loss, gradients = merged(model, samples, "rectangles")   ours
    worst(a, b)      max |a − b| over all elements of all parameters
    distance(a, b)   ‖a − b‖₂ ÷ ‖b‖₂ over all parameters taken as one vector

Both leave the model without gradients.
"""

import math
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.llama import modeling_llama
from transformers.models.minimax_m2 import modeling_minimax_m2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

from trainer.samples import Sample
from trainer.tree.attention import Backend
from trainer.tree.execute import backward
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget
from trainer.tree.plan import Longs
from trainer.tree.replay import routes_of

Gradients = dict[str, torch.Tensor]


def _rms_norm(self: Any, hidden: torch.Tensor) -> torch.Tensor:
    variance = hidden.pow(2).mean(-1, keepdim=True)
    weight: torch.Tensor = self.weight
    return weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))


def _qwen3_route(self: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = nn.functional.linear(hidden.reshape(-1, self.hidden_dim), self.weight)
    scores, experts = logits.softmax(-1).topk(self.top_k, dim=-1)
    return logits, scores / scores.sum(-1, keepdim=True), experts


def _minimax_route(
    self: Any, hidden: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = nn.functional.linear(hidden.reshape(-1, self.hidden_dim), self.weight)
    gates = logits.sigmoid()
    experts = (gates + bias).topk(self.top_k, dim=-1).indices
    scores = gates.gather(1, experts)
    return logits, scores / scores.sum(-1, keepdim=True), experts


@pytest.fixture
def double_precision_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face computes norms and routing in float32 for every dtype of the model; not in tests with this fixture."""
    compute_in_double(monkeypatch)


def compute_in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture's effect, for processes that are not tests."""
    for module, name in (
        (modeling_llama, "LlamaRMSNorm"),
        (modeling_qwen3, "Qwen3RMSNorm"),
        (modeling_qwen3_moe, "Qwen3MoeRMSNorm"),
        (modeling_minimax_m2, "MiniMaxM2RMSNorm"),
    ):
        monkeypatch.setattr(getattr(module, name), "forward", _rms_norm)
    monkeypatch.setattr(modeling_qwen3_moe.Qwen3MoeTopKRouter, "forward", _qwen3_route)
    monkeypatch.setattr(modeling_minimax_m2.MiniMaxM2TopKRouter, "forward", _minimax_route)


def _cispo(logp: torch.Tensor, behavior: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    return -((logp.detach() - behavior).exp().clamp(0.0, 5.0) * advantage * logp).sum()


def alone(model: Any, samples: list[Sample]) -> tuple[float, Gradients]:
    """CISPO with bounds 0 and 5, by its formula, over one plain causal row per sample. The head's logits are ≥ float32."""
    model.set_attn_implementation("sdpa")
    tokens = sum(sample.action_len for sample in samples)
    total = 0.0
    for sample in samples:
        ids = torch.from_numpy(sample.ids).long()
        routes = routes_of(model, sample.tokens.full_routes)
        hidden = model.model(input_ids=ids[None], use_cache=False, **routes).last_hidden_state[0]
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logits = hidden[sample.state_len - 1 : -1].to(wide) @ model.lm_head.weight.to(wide).T
        targets = ids[sample.state_len :]
        logp = (logits / sample.temperature).log_softmax(-1)[torch.arange(len(targets)), targets]
        behavior, advantage = torch.from_numpy(sample.behavior_logprobs), torch.from_numpy(sample.advantage)
        loss = _cispo(logp, behavior, advantage) / tokens
        torch.autograd.backward(loss)
        total += loss.item()
    return total, _taken(model)


def merged(
    model: Any, samples: list[Sample], backend: Backend, budget: int = 10_000
) -> tuple[float, Gradients]:
    """The same loss through one tree in passes of at most `budget` tokens, and the chunked head."""
    attach_tree_attention(model, backend)
    tokens = sum(sample.action_len for sample in samples)
    pack = pack_samples(samples, PassBudget(budget))
    behaviors = pack.edges.gather(pack.samples, lambda s: s.behavior_logprobs)
    advantages = pack.edges.gather(pack.samples, lambda s: s.advantage)

    def loss(rows: Longs, logp: torch.Tensor) -> torch.Tensor:
        behavior, advantage = (torch.from_numpy(x[rows]).to(logp) for x in (behaviors, advantages))
        return _cispo(logp, behavior, advantage) / tokens

    total = backward(model, pack, loss, head_chunk=7).loss
    return total, _taken(model)


def _taken(model: nn.Module) -> Gradients:
    result = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return result


def worst(a: Gradients, b: Gradients) -> float:
    """max |a − b|, or infinity where it is not a number."""
    assert a.keys() == b.keys() and a
    return max(float((a[name] - b[name]).abs().nan_to_num(torch.inf).max()) for name in a)


def distance(a: Gradients, b: Gradients) -> float:
    """‖a − b‖₂ ÷ ‖b‖₂, computed in float64."""
    assert a.keys() == b.keys() and a
    apart = sum(float((a[name].double() - b[name].double()).pow(2).sum()) for name in b)
    return math.sqrt(apart / sum(float(b[name].double().pow(2).sum()) for name in b))
