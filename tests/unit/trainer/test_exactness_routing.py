"""A merged token counts as often as it occurs in samples: load, balance loss and its gradients are those of one row per sample."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.minimax_m2 import modeling_minimax_m2
from transformers.models.qwen3_moe import modeling_qwen3_moe

from tests.unit.trainer.forests import FORESTS, MODELS, everything, minimax_m2, qwen3, qwen3_moe, seeded
from tests.unit.trainer.vanilla import Gradients, alone, double_precision_throughout, merged, worst
from trainer.activation_checkpointing import checkpoint_activations
from trainer.samples import Sample
from trainer.tree.execute import backward, score
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget
from trainer.tree.routing import Routing, multiplicities, routers_of
from trainer.update import UpdateSettings
from trainer.verify.merged import step_gradients
from trainer.verify.precision import Float64Throughout
from trainer.verify.vanilla import detach_tree_attention, vanilla_gradients

pytestmark = pytest.mark.tier("trainer")

__all__ = ["double_precision_throughout"]

MOE = {"qwen3_moe": modeling_qwen3_moe, "minimax_m2": modeling_minimax_m2}


def padded(samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples as one batch of rows, padded on the right, and its attention mask."""
    width = max(len(sample.ids) for sample in samples)
    ids, mask = torch.zeros(len(samples), width, dtype=torch.long), torch.zeros(len(samples), width)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.from_numpy(sample.ids)
        mask[row, : len(sample.ids)] = 1
    return ids, mask


def unmerged(name: str, policy: Any, samples: list[Sample]) -> tuple[float, Gradients, torch.Tensor]:
    """transformers' own balance loss over the padded batch, its gradients, and the load [L, E] of the experts chosen."""
    policy.set_attn_implementation("sdpa")
    ids, mask = padded(samples)
    chosen: list[torch.Tensor] = []
    hooks = [
        router.register_forward_hook(lambda _, __, out: chosen.append(out[-1]))
        for router in routers_of(policy)
    ]
    logits = policy.model(input_ids=ids, attention_mask=mask, output_router_logits=True).router_logits
    for hook in hooks:
        hook.remove()
    loss = MOE[name].load_balancing_loss_func(
        logits, policy.config.num_experts, policy.config.num_experts_per_tok, mask
    )
    torch.autograd.backward(loss)
    grads = {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad(set_to_none=True)
    real = mask.reshape(-1).bool()
    load = torch.stack([torch.bincount(layer[real].reshape(-1), minlength=4) for layer in chosen])
    return float(loss.detach()), grads, load


def balanced(policy: Any, samples: list[Sample], budget: int) -> tuple[Routing, Gradients]:
    """The balance loss alone, through one tree in passes."""
    attach_tree_attention(policy)
    pack = pack_samples(samples, PassBudget(budget))
    routing = Routing(routers_of(policy), multiplicities(pack.plan, pack.last), 1.0)
    backward(policy, pack, lambda rows, logp: 0.0 * logp.sum(), routing=routing)
    grads = {n: p.grad for n, p in policy.named_parameters() if p.grad is not None and p.grad.any()}
    policy.zero_grad(set_to_none=True)
    return routing, grads


@pytest.mark.parametrize("forest", FORESTS)
def test_multiplicity_counts_the_samples_that_a_token_is_part_of(forest: str) -> None:
    samples = FORESTS[forest]()
    pack = pack_samples(samples, PassBudget(10_000))
    counts = multiplicities(pack.plan, pack.last)
    assert counts.min() >= 1 and counts.sum() == sum(len(sample.ids) for sample in samples)
    # bool[samples, T]: the tokens that each last token sees are its sample.
    paths = pack.plan.mask()[pack.last]
    assert (counts == paths.sum(0)).all()


@pytest.mark.usefixtures("double_precision_throughout")
@pytest.mark.parametrize("budget", [10_000, 30], ids=["one_pass", "many_passes"])
@pytest.mark.parametrize("name", MOE)
def test_load_and_balance_loss_equal_those_of_unmerged_rows_with_their_gradients(
    name: str, budget: int
) -> None:
    policy, samples = seeded(MODELS[name], dtype=torch.float64), everything()
    loss, grads, load = unmerged(name, policy, samples)
    routing, ours = balanced(policy, samples, budget)
    assert (len(pack_samples(samples, PassBudget(budget)).passes) > 5) == (budget < 100)
    assert routing.load is not None and torch.equal(routing.load.long(), load)
    assert routing.value == pytest.approx(loss, abs=1e-6)  # transformers sums in float32
    nonzero = {n: g for n, g in grads.items() if g.any()}
    assert sum(float(g.abs().sum()) for g in nonzero.values()) > 1e-3
    assert worst(ours, nonzero) <= 1e-6
    busiest = load.double().amax(1) / load.double().mean(1)
    assert routing.imbalance == pytest.approx(float(busiest.max()))


@pytest.mark.usefixtures("double_precision_throughout")
def test_passes_and_activation_checkpointing_change_no_gradient_of_the_balance_loss() -> None:
    policy, samples = seeded(qwen3_moe, dtype=torch.float64), everything()
    _, one_pass = balanced(policy, samples, 10_000)
    _, many = balanced(policy, samples, 30)
    checkpoint_activations(policy)
    policy.train()
    _, checkpointed = balanced(policy, samples, 30)
    assert worst(many, one_pass) <= 1e-12 and worst(checkpointed, one_pass) <= 1e-12


def test_a_train_step_adds_the_balance_loss_and_reports_the_load() -> None:
    policy, samples = seeded(qwen3_moe), FORESTS["group_of_rollouts"]()
    attach_tree_attention(policy)
    plain, without = step_gradients(policy, samples, UpdateSettings())
    metrics, with_it = step_gradients(policy, samples, UpdateSettings(balance=0.5))
    routing, balance = balanced(policy, samples, 10_000)
    assert (plain.balance_loss, plain.loss) == (None, metrics.loss)
    assert metrics.balance_loss == pytest.approx(routing.value)
    assert plain.expert_imbalance == metrics.expert_imbalance == routing.imbalance
    expected = {n: g + 0.5 * balance.get(n, torch.zeros_like(g)) for n, g in without.items()}
    assert worst(dict(with_it), expected) <= 1e-6
    assert worst(dict(with_it), dict(without)) > 1e-4


def test_a_verification_has_the_balance_loss_on_both_sides_and_needs_no_patched_model() -> None:
    """A verification enters Float64Throughout instead of this file's patches."""
    policy, samples = seeded(minimax_m2, dtype=torch.float64), FORESTS["context_rewrites"]()
    settings = UpdateSettings(balance=0.5)
    with Float64Throughout():
        attach_tree_attention(policy)
        _, ours = step_gradients(policy, samples, settings)
        _, without = step_gradients(policy, samples, UpdateSettings())
        detach_tree_attention(policy)
        theirs = vanilla_gradients(policy, samples, settings).gradients
    assert worst(dict(ours), dict(theirs)) <= 1e-12 < 1e-4 < worst(dict(ours), dict(without))


def test_scoring_counts_every_token_and_leaves_no_hook_behind() -> None:
    policy, samples = seeded(qwen3_moe), FORESTS["context_rewrites"]()
    attach_tree_attention(policy)
    pack = pack_samples(samples, PassBudget(20))
    routing = Routing(routers_of(policy), np.ones(pack.plan.tokens, np.int64), 0.0)
    score(policy, pack, routing=routing)
    assert routing.complete and routing.load is not None
    assert routing.load.sum(1).tolist() == [2.0 * pack.plan.tokens] * 2  # two experts a token, two layers
    assert not any(router._forward_hooks for router in routers_of(policy))


def test_a_dense_model_has_no_routers_and_refuses_a_balance_loss() -> None:
    policy = seeded(qwen3)
    attach_tree_attention(policy)
    assert routers_of(policy) == []
    with pytest.raises(
        ValueError, match=r"trainer\.balance is 0\.1, but the policy in  has no experts: begin a new"
    ):
        step_gradients(policy, FORESTS["duplicates"](), UpdateSettings(balance=0.1))


def test_routers_that_do_not_say_what_they_chose_cannot_be_balanced_and_are_left_alone_otherwise() -> None:
    policy = seeded(qwen3_moe)
    samples = FORESTS["duplicates"]()
    attach_tree_attention(policy)
    pack = pack_samples(samples, PassBudget(100))
    linear = [layer.self_attn.q_proj for layer in policy.model.layers]  # they return one tensor, no choice
    silent = Routing(linear, multiplicities(pack.plan, pack.last), 0.0)
    backward(policy, pack, lambda rows, logp: -logp.sum(), routing=silent)
    assert silent.load is None and silent.imbalance is None and silent.complete
    with pytest.raises(
        ValueError, match=r"\(Linear\) do not answer .* begin a new run with trainer\.balance = 0"
    ):
        backward(
            policy,
            pack,
            lambda rows, logp: -logp.sum(),
            routing=Routing(linear, multiplicities(pack.plan, pack.last), 0.1),
        )


@pytest.mark.parametrize("budget", [10_000, 30], ids=["one_pass", "many_passes"])
@pytest.mark.parametrize("name", MOE)
def test_the_default_experts_kernel_drops_no_token_either(name: str, budget: int) -> None:
    """The other tests use transformers' eager experts; a trainer gets the grouped kernel."""
    eager, samples = seeded(MODELS[name]), FORESTS["context_rewrites"]()
    assert (len(pack_samples(samples, PassBudget(budget)).passes) > 1) == (budget < 100)
    eager.config._experts_implementation = None
    policy = type(eager)(eager.config)
    policy.load_state_dict(eager.state_dict())
    assert policy.config._experts_implementation == "grouped_mm"
    _, reference = alone(seeded(MODELS[name]), samples)
    _, ours = merged(policy, samples, "rectangles", budget)
    assert worst(ours, reference) <= 1e-5
