"""The selection bias goes against the load, and the load is that of one row per sample."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.trainer import TrainerSection
from tests.unit.trainer.forests import everything, minimax_m2, qwen3_moe, seeded
from trainer.expert_bias import biases_of, check_biases, move_biases
from trainer.learner import update_settings
from trainer.samples import Sample
from trainer.tree.execute import score
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget
from trainer.tree.routing import Routing, routers_of
from trainer.update import OptimizerSettings, UpdateSettings, make_optimizer, train_step

RATE = 0.001
BEFORE = [0.3, -0.3, 0.0, 0.1]  # forests.minimax_m2


def stepped(samples: list[Sample], **settings: Any) -> tuple[Any, Any]:
    policy = seeded(minimax_m2)
    attach_tree_attention(policy)
    optimizer = make_optimizer(policy, OptimizerSettings(lr=1e-3))
    return policy, train_step(policy, optimizer, samples, UpdateSettings(**settings), trainer_version=0)


def test_the_formula_by_hand() -> None:
    """Loads 6, 2, 4, 4 of mean 4: one expert has too much, one too little, two are right. The second layer has all in one place."""
    policy = seeded(minimax_m2)
    load = torch.tensor([[6.0, 2.0, 4.0, 4.0], [0.0, 0.0, 16.0, 0.0]], dtype=torch.float64)
    wide = move_biases(policy, load, 0.5)
    first, second = (bias.tolist() for bias in biases_of(policy))
    assert first == pytest.approx([0.3 - 0.5, -0.3 + 0.5, 0.0, 0.1])
    assert second == pytest.approx([0.3 + 0.5, -0.3 + 0.5, 0.0 - 0.5, 0.1 + 0.5])
    assert wide == pytest.approx(1.3)
    assert move_biases(policy, load, 0.0) == wide and biases_of(policy)[0].tolist() == first


def test_a_train_step_moves_the_biases_as_unmerged_rows_would() -> None:
    samples = everything()
    policy, metrics = stepped(samples, bias_rate=RATE)
    assert metrics.applied and metrics.merged_tokens < metrics.naive_tokens
    reference = seeded(minimax_m2)
    load = torch.zeros(2, 4)
    chosen: list[torch.Tensor] = []
    for router in routers_of(reference):
        router.register_forward_hook(lambda _, __, out: chosen.append(out[2]))
    for sample in samples:
        chosen.clear()
        with torch.no_grad():
            reference(input_ids=torch.from_numpy(sample.ids)[None].long(), use_cache=False)
        load += torch.stack([torch.bincount(each.reshape(-1), minlength=4) for each in chosen])
    assert load.sum() == 2 * 2 * metrics.naive_tokens
    expected = torch.tensor(BEFORE) + RATE * torch.sign(load.mean(1, keepdim=True) - load)
    assert torch.equal(torch.stack(biases_of(policy)), expected)
    assert metrics.bias_range == pytest.approx(float((expected.amax(1) - expected.amin(1)).max()))
    attach_tree_attention(reference)
    pack = pack_samples(samples, PassBudget(10_000))
    once = Routing(routers_of(reference), np.ones(pack.plan.tokens, np.int64), 0.0)
    score(reference, pack, routing=once)
    assert once.load is not None  # counted once each, merged tokens would move a bias the other way
    assert not torch.equal(
        torch.sign(once.load.mean(1, True) - once.load), torch.sign(load.mean(1, True) - load)
    )


def test_biases_stay_where_the_rate_is_0_and_where_a_step_is_skipped() -> None:
    samples = everything()
    for settings, applied in (({}, True), ({"bias_rate": RATE, "spike_grad_norm": 1e-9}, False)):
        policy, metrics = stepped(samples, **settings)
        assert metrics.applied is applied
        assert torch.equal(torch.stack(biases_of(policy)), torch.tensor([BEFORE, BEFORE]))


def test_the_loss_has_no_gradient_for_a_bias_and_does_not_change_with_a_small_one() -> None:
    """Why a joint rule does not exist: a bias that changes no choice changes nothing, to the last bit, and a bias that does is a jump."""
    ids = torch.from_numpy(everything()[0].ids)[None].long()

    def loss(shift: float, *, gradient: bool = False) -> tuple[float, list[torch.Tensor | None]]:
        policy = seeded(minimax_m2)
        for layer in policy.model.layers:
            bias = torch.tensor(BEFORE) + torch.tensor([shift, 0.0, 0.0, 0.0])
            del layer.mlp.e_score_correction_bias
            layer.mlp.e_score_correction_bias = nn.Parameter(bias)
        found = policy(input_ids=ids, labels=ids, use_cache=False).loss
        if gradient:
            found.backward()
        return float(found.detach()), [bias.grad for bias in biases_of(policy)]

    at, gradients = loss(0.0, gradient=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    assert len(gradients) == 2
    assert loss(1e-7)[0] == at == loss(-1e-7)[0], "the difference quotient is 0 as well"
    assert loss(5.0)[0] != at, "yet the bias matters: it chooses"


def test_a_frozen_bias_stays_whatever_trains_and_decays() -> None:
    policy = seeded(minimax_m2)
    before = {name: weight.clone() for name, weight in policy.named_parameters()}
    attach_tree_attention(policy)
    optimizer = make_optimizer(policy, OptimizerSettings(lr=1e-2, weight_decay=0.1))
    section = TrainerSection.model_validate({"balance": 0.01})
    assert train_step(policy, optimizer, everything(), update_settings(section), trainer_version=0).applied
    assert torch.equal(torch.stack(biases_of(policy)), torch.tensor([BEFORE, BEFORE]))
    assert any(not torch.equal(before[name], weight) for name, weight in policy.named_parameters())


def test_balance_moves_the_bias_by_its_usual_rate() -> None:
    section = TrainerSection.model_validate({"expert_bias": "balance"})
    policy = seeded(minimax_m2)
    attach_tree_attention(policy)
    optimizer = make_optimizer(policy, OptimizerSettings(lr=1e-3))
    train_step(policy, optimizer, everything(), update_settings(section), trainer_version=0)
    moved = (torch.stack(biases_of(policy)) - torch.tensor([BEFORE, BEFORE])).abs()
    assert moved.max() == pytest.approx(0.001, abs=1e-6)


def test_passes_change_no_bias() -> None:
    samples = everything()
    one, many = (stepped(samples, bias_rate=RATE, budget=PassBudget(b))[0] for b in (10_000, 30))
    assert len(pack_samples(samples, PassBudget(30)).passes) > 5
    assert torch.equal(torch.stack(biases_of(one)), torch.stack(biases_of(many)))


def test_moved_biases_are_saved_with_the_weights(tmp_path: Path) -> None:
    policy, _ = stepped(everything(), bias_rate=RATE)
    policy.save_pretrained(tmp_path)
    loaded = type(policy).from_pretrained(tmp_path)
    assert torch.equal(torch.stack(biases_of(loaded)), torch.stack(biases_of(policy)))


def test_a_model_without_selection_biases_is_refused_in_one_sentence() -> None:
    check_biases(seeded(minimax_m2))
    for policy in (seeded(qwen3_moe), nn.Linear(2, 2)):
        assert move_biases(policy, None, 0.0) is None
        with pytest.raises(
            ConfigurationError,
            match=r'expert_bias is "balance", but .* without a bias: begin a new run with .*"frozen"',
        ):
            check_biases(policy)
    with pytest.raises(ConfigurationError, match="routers of this model do not report their choices"):
        move_biases(seeded(minimax_m2), None, RATE)
