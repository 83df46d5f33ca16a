"""Merging changes nothing: loss and gradients equal those of plain Hugging Face, one sample at a time."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

from tests.unit.trainer.forests import FORESTS, MODELS, everything, seeded
from trainer.logprobs import pack_logprobs
from trainer.loss.cispo import CispoSettings, cispo
from trainer.samples import Sample
from trainer.tree.attention import Backend
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import pack_samples


def rms_norm(self: Any, hidden: torch.Tensor) -> torch.Tensor:
    variance = hidden.pow(2).mean(-1, keepdim=True)
    weight: torch.Tensor = self.weight
    return weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))


def route(self: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = nn.functional.linear(hidden.reshape(-1, self.hidden_dim), self.weight)
    scores, experts = logits.softmax(-1).topk(self.top_k, dim=-1)
    return logits, scores / scores.sum(-1, keepdim=True), experts


@pytest.fixture
def double_precision_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face computes norms and routing in float32 whatever the model's dtype is; not in these tests."""
    for module, name in (
        (modeling_llama, "LlamaRMSNorm"),
        (modeling_qwen3, "Qwen3RMSNorm"),
        (modeling_qwen3_moe, "Qwen3MoeRMSNorm"),
    ):
        monkeypatch.setattr(getattr(module, name), "forward", rms_norm)
    monkeypatch.setattr(modeling_qwen3_moe.Qwen3MoeTopKRouter, "forward", route)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    result = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return result


def alone(model: Any, samples: list[Sample]) -> tuple[float, dict[str, torch.Tensor]]:
    """The formula written out once more, over one plain causal row per sample."""
    model.set_attn_implementation("sdpa")
    tokens = sum(sample.action_len for sample in samples)
    total = 0.0
    for sample in samples:
        logits = model(input_ids=torch.from_numpy(sample.ids)[None].long()).logits[
            0, sample.state_len - 1 : -1
        ]
        targets = torch.from_numpy(sample.ids[sample.state_len :]).long()
        logp = logits.log_softmax(-1)[torch.arange(len(targets)), targets]
        ratio = (logp.detach() - torch.from_numpy(sample.behavior_logprobs)).exp().clamp(0.0, 5.0)
        loss = -(ratio * torch.from_numpy(sample.advantage) * logp).sum() / tokens
        torch.autograd.backward(loss)
        total += loss.item()
    return total, gradients(model)


def merged(
    model: Any, samples: list[Sample], backend: Backend, budget: int = 10_000
) -> tuple[float, dict[str, torch.Tensor]]:
    attach_tree_attention(model, backend)
    tokens = sum(sample.action_len for sample in samples)
    total = 0.0
    for pack in pack_samples(samples, budget):
        logp, _ = pack_logprobs(model, pack, chunk=7)
        behavior = torch.from_numpy(pack.edges.gather(pack.samples, lambda s: s.behavior_logprobs)).to(logp)
        advantage = torch.from_numpy(pack.edges.gather(pack.samples, lambda s: s.advantage)).to(logp)
        coefficient = torch.full_like(logp, 1 / tokens)
        loss, _ = cispo(logp, behavior, advantage, coefficient, CispoSettings())
        torch.autograd.backward(loss)
        total += loss.item()
    return total, gradients(model)


def worst(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys() and a
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.usefixtures("double_precision_throughout")
@pytest.mark.parametrize("forest", FORESTS)
@pytest.mark.parametrize("model", MODELS)
def test_gradients_equal_one_sample_at_a_time_in_float64(model: str, forest: str) -> None:
    policy, samples = seeded(MODELS[model], dtype=torch.float64), FORESTS[forest]()
    loss, grads = merged(policy, samples, "rectangles")
    reference_loss, reference = alone(policy, samples)
    assert sum(float(g.abs().sum()) for g in reference.values()) > 0.01
    assert abs(loss - reference_loss) < 1e-12
    assert worst(grads, reference) <= 1e-10


@pytest.mark.parametrize("model", MODELS)
def test_gradients_equal_one_sample_at_a_time_in_float32(model: str) -> None:
    policy, samples = seeded(MODELS[model]), everything()
    loss, grads = merged(policy, samples, "rectangles")
    reference_loss, reference = alone(policy, samples)
    assert abs(loss - reference_loss) < 1e-5
    assert worst(grads, reference) <= 1e-5


@pytest.mark.usefixtures("double_precision_throughout")
def test_backends_and_pack_sizes_give_the_same_gradients() -> None:
    policy, samples = seeded(MODELS["qwen3"], dtype=torch.float64), everything()
    _, one_pack = merged(policy, samples, "rectangles")
    _, dense = merged(policy, samples, "dense")
    _, many_packs = merged(policy, samples, "rectangles", budget=20)
    assert len(pack_samples(samples, 20)) > 10
    assert worst(one_pack, dense) <= 1e-10
    assert worst(one_pack, many_packs) <= 1e-10


@pytest.mark.usefixtures("double_precision_throughout")
def test_activation_checkpointing_passes_the_plan_along() -> None:
    policy, samples = seeded(MODELS["qwen3"], dtype=torch.float64), FORESTS["context_rewrites"]()
    _, plain = merged(policy, samples, "rectangles")
    policy.activation_checkpointing_enable()
    policy.train()
    _, checkpointed = merged(policy, samples, "rectangles")
    assert worst(plain, checkpointed) <= 1e-12
