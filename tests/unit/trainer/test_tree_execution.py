"""Executing a tree pass by pass gives the numbers of one sample at a time, for every budget."""

import inspect
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.trainer.forests import FORESTS, MODELS, VOCAB, Forest, everything, seeded
from tests.unit.trainer.vanilla import alone, distance, double_precision_throughout, merged, worst
from trainer.activation_checkpointing import checkpoint_activations
from trainer.samples import Sample
from trainer.tree.attention import attend
from trainer.tree.execute import backward
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import Pack, pack_samples
from trainer.tree.passes import PassBudget
from trainer.tree.path import Path
from trainer.tree.plan import FlatTree, Longs
from trainer.update import UpdateSettings, recompute_logprobs

pytestmark = pytest.mark.tier("trainer")

__all__ = ["double_precision_throughout"]
PLENTY = PassBudget(10_000)
exact = pytest.mark.usefixtures("double_precision_throughout")


@exact
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("budget", [1, 12])
def test_gradients_in_passes_equal_one_sample_at_a_time_in_float64(model: str, budget: int) -> None:
    policy = seeded(MODELS[model], dtype=torch.float64)
    samples = FORESTS["context_rewrites"]() if budget == 1 else everything()
    loss, grads = merged(policy, samples, "rectangles", budget)
    reference_loss, reference = alone(policy, samples)
    assert max(one.past for one in pack_samples(samples, PassBudget(budget)).passes) > 8
    assert abs(loss - reference_loss) < 1e-12
    assert worst(grads, reference) <= 1e-10


@pytest.mark.parametrize("model", MODELS)
def test_gradients_in_passes_equal_one_sample_at_a_time_in_float32(model: str) -> None:
    policy, samples = seeded(MODELS[model]), everything()
    loss, grads = merged(policy, samples, "rectangles", 12)
    reference_loss, reference = alone(policy, samples)
    assert abs(loss - reference_loss) < 1e-5
    assert worst(grads, reference) <= 1e-5


@exact
def test_the_dense_backend_and_activation_checkpointing_work_in_passes() -> None:
    policy, samples = seeded(MODELS["qwen3"], dtype=torch.float64), everything()
    _, plain = merged(policy, samples, "rectangles")
    _, dense = merged(policy, samples, "dense", 12)
    checkpoint_activations(policy)
    policy.train()
    _, checkpointed = merged(policy, samples, "rectangles", 12)
    assert worst(dense, plain) <= 1e-10 and worst(checkpointed, plain) <= 1e-10


def test_reentrant_activation_checkpointing_is_refused_where_it_would_cut_gradients() -> None:
    policy = seeded(MODELS["qwen3"])
    checkpoint_activations(policy, {"use_reentrant": True})
    policy.model.embed_tokens.register_forward_hook(lambda *call: call[2].requires_grad_())
    policy.train()
    with pytest.raises(ValueError, match="use_reentrant=False"):
        merged(policy, everything(), "rectangles", 7)


def test_many_passes_add_no_error_to_a_bfloat16_model() -> None:
    samples = FORESTS["context_rewrites"]()
    _, exact_ones = merged(seeded(MODELS["qwen3"]), samples, "rectangles")
    coarse = seeded(MODELS["qwen3"], dtype=torch.bfloat16)
    errors = [distance(merged(coarse, samples, "dense", budget)[1], exact_ones) for budget in (10_000, 3)]
    assert errors[1] <= 1.25 * errors[0]


def coupled(pack: Pack, requested: list[Longs]) -> Any:
    """A loss in which every token of a sample matters to every other, as in GSPO."""

    def loss(rows: Longs, logp: torch.Tensor) -> torch.Tensor:
        requested.append(rows)
        owner = torch.from_numpy(pack.edges.sample[rows])
        return logp.new_zeros(len(pack.samples)).index_add(0, owner, logp).exp().sum()

    return loss


@exact
def test_a_loss_that_couples_the_tokens_of_a_sample_sees_every_sample_whole_and_once() -> None:
    policy, samples = seeded(MODELS["qwen3"], dtype=torch.float64), everything()
    attach_tree_attention(policy)
    gradients = []
    for budget in (PLENTY, PassBudget(5)):
        pack, requested = pack_samples(samples, budget), list[Longs]()
        policy.zero_grad()
        backward(policy, pack, coupled(pack, requested))
        gradients.append({name: p.grad.clone() for name, p in policy.named_parameters()})
        assert sorted(np.concatenate(requested).tolist()) == list(range(len(pack.edges)))
        owners = [set(pack.edges.sample[rows].tolist()) for rows in requested]
        assert sum(map(len, owners)) == len(samples)
    assert len(owners) > 10  # several samples ended while others were open
    assert worst(gradients[1], gradients[0]) <= 1e-10


def test_scores_in_passes_equal_those_in_one_pass() -> None:
    policy, samples = seeded(MODELS["qwen3_moe"], dtype=torch.float64), everything()
    attach_tree_attention(policy)
    whole = recompute_logprobs(policy, samples, UpdateSettings(budget=PLENTY))
    parts = recompute_logprobs(policy, samples, UpdateSettings(budget=PassBudget(9)))
    assert [len(values) for values in parts] == [sample.action_len for sample in samples]
    assert max(float(np.abs(a - b).max()) for a, b in zip(whole, parts, strict=True)) < 1e-5
    assert recompute_logprobs(policy, [], UpdateSettings()) == []


def test_the_path_keeps_no_more_than_the_deepest_open_trunks() -> None:
    """Buffers are as long as the deepest path with open branches, not as long as the tree has tokens."""
    forest = Forest()
    for _ in range(20):
        forest.turns(forest.ids(10), 2)
    pack = pack_samples(forest.samples, PassBudget(6))
    longest = max(len(sample.tokens) for sample in forest.samples)
    assert max(one.past for one in pack.passes) < longest < pack.plan.tokens / 10


def test_a_loss_that_is_not_finite_ends_the_walk_and_is_what_is_reported() -> None:
    policy, samples = seeded(MODELS["qwen3"]), everything()
    attach_tree_attention(policy)
    pack, calls = pack_samples(samples, PassBudget(7)), list[int]()

    def loss(rows: Longs, logp: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        return logp.sum() * (math.nan if len(calls) == 3 else 1.0)

    assert math.isnan(backward(policy, pack, loss).loss) and len(calls) == 3


def test_a_model_whose_lower_layers_are_frozen_trains_the_others_alike_in_passes() -> None:
    gradients = []
    for budget in (PLENTY, PassBudget(7)):
        policy = seeded(MODELS["llama"], dtype=torch.float64)
        policy.model.embed_tokens.requires_grad_(False)
        policy.model.layers[0].requires_grad_(False)
        attach_tree_attention(policy)
        pack = pack_samples(everything(), budget)
        backward(policy, pack, lambda rows, logp: -logp.sum())
        gradients.append({n: p.grad for n, p in policy.named_parameters() if p.requires_grad})
    assert worst(gradients[1], gradients[0]) <= 1e-5


def test_a_path_of_many_passes_does_not_recurse() -> None:
    policy = seeded(MODELS["llama"])
    attach_tree_attention(policy)
    ids = np.random.default_rng(0).integers(0, VOCAB, 200).astype(np.int32)
    chain = Sample.of(ids[:190], ids[190:], behavior_logprobs=[0.0] * 10, advantage=1.0)
    pack = pack_samples([chain], PassBudget(1))
    assert len(pack.passes) == 200
    allowed = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)  # a model's own calls; not 200 passes
    try:
        assert math.isfinite(backward(policy, pack, lambda rows, logp: -logp.sum()).loss)
    finally:
        sys.setrecursionlimit(allowed)


def test_attention_refuses_a_plan_below_a_path_without_the_paths_keys() -> None:
    tree = FlatTree([sample.tokens for sample in everything()])
    below = tree.plan.part([(3, 6)], 3)
    q = torch.zeros(1, 2, 3, 16)
    with pytest.raises(ValueError, match="keys of 0 tokens above a plan that hangs below 3"):
        attend(q, q, q, below, 1.0, "rectangles")


def test_a_path_without_trunks_holds_no_memory() -> None:
    key = torch.zeros(1, 2, 5, 4)
    assert Path(0).attended(torch.nn.Identity(), key, key) is None
