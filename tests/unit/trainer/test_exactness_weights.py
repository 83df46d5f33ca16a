"""Weights per token, a scale of negative advantages and every aggregation: merged by the formula equals one plain causal row per sample."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.contracts.choices import Aggregation
from tests.unit.trainer.forests import MODELS, everything, seeded
from tests.unit.trainer.vanilla import double_precision_throughout, worst
from trainer.samples import Sample
from trainer.tree.forward import attach_tree_attention
from trainer.tree.passes import PassBudget
from trainer.update import UpdateSettings
from trainer.verify.merged import step_gradients

__all__ = ["double_precision_throughout"]

NEGATIVE = 0.25


def shares(samples: list[Sample], aggregation: Aggregation) -> list[float]:
    """The factor of each sample's sum over its tokens: one over the counted tokens of all, of its group, or of itself; and groups,
    or samples, count the same."""
    counts = [int((sample.weight > 0).sum()) for sample in samples]
    if aggregation is Aggregation.TOKEN:
        return [1 / sum(counts)] * len(samples)
    owners = [
        sample.group if aggregation is Aggregation.PROMPT else str(i) for i, sample in enumerate(samples)
    ]
    of = {
        owner: sum(n for n, other in zip(counts, owners, strict=True) if other == owner) for owner in owners
    }
    training = sum(n > 0 for n in of.values())
    return [1 / of[owner] / training if of[owner] else 0.0 for owner in owners]


@pytest.mark.usefixtures("double_precision_throughout")
@pytest.mark.parametrize("budget", [10_000, 20], ids=["one_pass", "many_passes"])
@pytest.mark.parametrize("aggregation", Aggregation)
def test_weights_and_the_scale_of_negative_advantages_count_as_the_formula_says(
    aggregation: Aggregation, budget: int
) -> None:
    rng = np.random.default_rng(0)
    samples = [
        replace(sample, weight=rng.choice([0, 0.5, 1, 2], sample.action_len).astype(np.float32))
        for sample in everything()
    ]
    assert any((sample.advantage < 0).any() for sample in samples)
    model: Any = seeded(MODELS["qwen3"], dtype=torch.float64)
    attach_tree_attention(model)
    settings = UpdateSettings(aggregation=aggregation, negative_scale=NEGATIVE, budget=PassBudget(budget))
    _, ours = step_gradients(model, samples, settings)
    model.set_attn_implementation("sdpa")
    for sample, share in zip(samples, shares(samples, aggregation), strict=True):
        ids = torch.from_numpy(sample.ids).long()
        logits = model(input_ids=ids[None], use_cache=False).logits[0, sample.state_len - 1 : -1]
        logp = (logits / sample.temperature).log_softmax(-1)
        logp = logp.gather(1, ids[sample.state_len :, None])[:, 0]
        behavior, advantage, weight = (
            torch.from_numpy(values).double()
            for values in (sample.behavior_logprobs, sample.advantage, sample.weight)
        )
        advantage = torch.where(advantage < 0, NEGATIVE * advantage, advantage)
        ratio = (logp.detach() - behavior).exp().clamp(0, 5)
        torch.autograd.backward(-share * (weight * ratio * advantage * logp).sum())
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert worst(dict(ours), theirs) <= 1e-10
