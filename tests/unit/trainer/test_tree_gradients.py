"""Merging changes nothing: loss and gradients equal those of plain Hugging Face, one sample at a time."""

import pytest
import torch
from torch import nn

from tests.unit.trainer.forests import FORESTS, MODELS, everything, seeded
from tests.unit.trainer.vanilla import alone, distance, double_precision_throughout, merged, worst
from trainer.activation_checkpointing import checkpoint_activations
from trainer.tree.attention import Backend
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget

__all__ = ["double_precision_throughout"]


@pytest.mark.usefixtures("double_precision_throughout")
@pytest.mark.parametrize("forest", FORESTS)
@pytest.mark.parametrize("model", MODELS)
def test_gradients_equal_one_sample_at_a_time_in_float64(model: str, forest: str) -> None:
    policy, samples = seeded(MODELS[model], dtype=torch.float64), FORESTS[forest]()
    loss, grads = merged(policy, samples, "rectangles")
    reference_loss, reference = alone(policy, samples)
    assert sum(float(g.abs().sum()) for g in reference.values()) > 0.01
    assert abs(loss - reference_loss) < 1e-12
    assert worst(grads, reference) <= 1e-10 and distance(grads, reference) <= 1e-10


@pytest.mark.parametrize("model", MODELS)
def test_gradients_equal_one_sample_at_a_time_in_float32(model: str) -> None:
    policy, samples = seeded(MODELS[model]), everything()
    loss, grads = merged(policy, samples, "rectangles")
    reference_loss, reference = alone(policy, samples)
    assert abs(loss - reference_loss) < 1e-5
    assert worst(grads, reference) <= 1e-5 and distance(grads, reference) <= 1e-5


@pytest.mark.usefixtures("double_precision_throughout")
def test_backends_and_pack_sizes_give_the_same_gradients() -> None:
    policy, samples = seeded(MODELS["qwen3"], dtype=torch.float64), everything()
    _, one_pack = merged(policy, samples, "rectangles")
    _, dense = merged(policy, samples, "dense")
    _, many_packs = merged(policy, samples, "rectangles", budget=20)
    assert len(pack_samples(samples, PassBudget(20)).passes) > 10
    assert worst(one_pack, dense) <= 1e-10
    assert worst(one_pack, many_packs) <= 1e-10


@pytest.mark.usefixtures("double_precision_throughout")
@pytest.mark.parametrize("budget", [10_000, 20], ids=["one_pass", "many_passes"])
@pytest.mark.parametrize("backend", ["rectangles", "dense"])
@pytest.mark.parametrize("model", ["qwen3", "minimax_m2"])
def test_activation_checkpointing_changes_no_gradient(model: str, backend: Backend, budget: int) -> None:
    """Layers run again in the backward pass: they must find the same plan and the same path above it."""
    policy, samples = seeded(MODELS[model], dtype=torch.float64), FORESTS["context_rewrites"]()
    _, plain = merged(policy, samples, backend, budget)
    checkpoint_activations(policy)
    policy.train()
    layers = forwards_of(policy.model.layers[0])
    _, checkpointed = merged(policy, samples, backend, budget)
    assert worst(plain, checkpointed) <= 1e-12
    passes = len(pack_samples(samples, PassBudget(budget)).passes)
    assert len(layers) >= 2 * passes  # so it was on


def forwards_of(layer: nn.Module) -> list[str]:
    """Grows by one with every forward pass of the layer, those of a backward pass included."""
    seen: list[str] = []
    layer.input_layernorm.register_forward_hook(lambda *_: seen.append("forward"))  # type: ignore[union-attr]
    return seen


def test_activations_are_checkpointed_also_by_the_name_of_older_transformers_and_whatever_its_defaults() -> (
    None
):
    class Older:
        options: object = "not called"

        def gradient_checkpointing_enable(self, options: object) -> None:
            self.options = options

    model = Older()
    checkpoint_activations(model)
    assert model.options == {"use_reentrant": False}
    checkpoint_activations(model, {"use_reentrant": True})
    assert model.options == {"use_reentrant": True}
