"""A train step: the updates that it applies, those that it skips, and the settings that may not change its result."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.contracts.choices import Anchor, MismatchMask
from tests.unit.trainer.forests import Forest, everything, group_of_rollouts, qwen3, seeded
from trainer.loss.base import Loss
from trainer.loss.choose import BOUNDED, UNBOUNDED
from trainer.loss.correction import CorrectionSettings
from trainer.loss.grpo import Grpo
from trainer.loss.metrics import TrainStepMetrics
from trainer.loss.sft import Sft
from trainer.samples import Sample
from trainer.tree.forward import attach_tree_attention
from trainer.tree.passes import PassBudget
from trainer.update import (
    OptimizerSettings,
    UpdateSettings,
    anchored,
    make_optimizer,
    recompute_logprobs,
    split_train_steps,
    train_step,
)


def policy(dtype: torch.dtype = torch.float32) -> Any:
    model = seeded(qwen3, dtype=dtype)
    attach_tree_attention(model)
    return model


def snapshot(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def one_step(samples: list[Sample], **settings: Any) -> tuple[TrainStepMetrics, dict[str, torch.Tensor]]:
    model = policy(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    metrics = train_step(model, optimizer, samples, UpdateSettings(**settings), trainer_version=1)
    return metrics, snapshot(model)


def test_rewarded_actions_become_more_likely_and_the_others_less() -> None:
    forest = Forest()
    state = forest.ids(5)
    good, bad = forest.ids(3), forest.ids(3)
    model = policy()
    neutral = [
        Sample.of(state, action, behavior_logprobs=[0.0] * 3, advantage=sign)
        for action, sign in ((good, 1.0), (bad, -1.0))
    ]
    before = recompute_logprobs(model, neutral, UpdateSettings())
    samples = [dataclasses.replace(s, behavior_logprobs=b) for s, b in zip(neutral, before, strict=True)]
    optimizer = make_optimizer(model, OptimizerSettings(lr=1e-3))
    for _ in range(5):
        metrics = train_step(model, optimizer, samples, UpdateSettings(), trainer_version=0)
    after = recompute_logprobs(model, samples, UpdateSettings())
    assert metrics.applied
    assert after[0].sum() > before[0].sum() + 0.1
    assert after[1].sum() < before[1].sum() - 0.1


def test_on_policy_samples_have_ratio_one_through_the_same_backend() -> None:
    model = policy()
    samples = group_of_rollouts()
    logprobs = recompute_logprobs(model, samples, UpdateSettings(budget=PassBudget(30)))
    on_policy = [dataclasses.replace(s, behavior_logprobs=b) for s, b in zip(samples, logprobs, strict=True)]
    optimizer = make_optimizer(model, OptimizerSettings())
    metrics = train_step(model, optimizer, on_policy, UpdateSettings(), trainer_version=0)
    assert metrics.max_abs_dlogprob < 1e-5 and metrics.ess > 0.9999 and metrics.clip_fraction == 0
    later = train_step(model, optimizer, on_policy, UpdateSettings(), trainer_version=1)
    assert later.max_abs_dlogprob > 1e-4
    assert set(later.staleness) == {1}


def test_the_logprobs_of_its_forward_pass_are_those_before_the_step_and_change_nothing() -> None:
    samples = everything()
    weightless = dataclasses.replace(samples[1], weight=np.zeros_like(samples[1].weight))
    samples = [samples[0], weightless, *samples[2:]]
    before = recompute_logprobs(policy(torch.float64), samples, UpdateSettings())
    plain, without = one_step(samples, budget=PassBudget(25))
    metrics, kept = one_step(samples, budget=PassBudget(25), keep_logprobs=True)
    assert plain.logprobs is None and metrics == plain
    assert all(torch.equal(kept[name], without[name]) for name in without)
    assert metrics.logprobs is not None
    own = np.split(metrics.logprobs, np.cumsum([sample.action_len for sample in samples])[:-1])
    assert np.isnan(own[1]).all() and weightless.action_len > 0
    for number, (ours, theirs) in enumerate(zip(own, before, strict=True)):
        if number != 1:
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["token", "prompt", "sample"])
def test_the_number_of_packs_and_chunks_does_not_change_the_step(aggregation: Any) -> None:
    samples = everything()
    samples += [dataclasses.replace(s, group="other", seq=1) for s in group_of_rollouts()[:3]]
    whole, after_whole = one_step(samples, aggregation=aggregation)
    parts, after_parts = one_step(samples, aggregation=aggregation, budget=PassBudget(25), head_chunk=3)
    assert whole.packs == 1 and parts.packs > 5
    assert parts.loss == pytest.approx(whole.loss, abs=1e-6)
    assert max(float((after_whole[n] - after_parts[n]).abs().max()) for n in after_whole) < 1e-6
    assert (parts.action_tokens, parts.naive_tokens) == (whole.action_tokens, whole.naive_tokens)
    assert parts.merge_ratio == whole.merge_ratio


LOSSES: dict[str, Loss] = {
    **{name: make(0.8, 1.2) for name, make in BOUNDED.items()},
    **{name: make() for name, make in UNBOUNDED.items()},
}


@pytest.mark.parametrize("mask", ["none", "icepop", "mis"])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_loss_and_no_mask_depends_on_how_samples_are_packed(loss: str, mask: Any) -> None:
    model = policy(torch.float64)
    near = [
        dataclasses.replace(s, behavior_logprobs=b + s.advantage * np.float32(0.2))
        for s, b in zip(everything(), recompute_logprobs(model, everything(), UpdateSettings()), strict=True)
    ]
    settings = UpdateSettings(
        loss=LOSSES[loss],
        correction=CorrectionSettings(
            anchor=Anchor.PROXIMAL, mask=mask, icepop_min=0.9, icepop_max=1.1, mis_max=1.1
        ),
    )
    samples = anchored(model, near, settings)
    same: dict[str, Any] = {"loss": settings.loss, "correction": settings.correction}
    whole, after_whole = one_step(samples, **same)
    parts, after_parts = one_step(samples, budget=PassBudget(25), **same)
    assert whole.packs == 1 and parts.packs > 5
    assert (whole.cut_fraction > 0) == (mask != "none")
    assert parts.clip_fraction == whole.clip_fraction and parts.cut_fraction == whole.cut_fraction
    assert parts.loss == pytest.approx(whole.loss, abs=1e-6)
    assert max(float((after_whole[n] - after_parts[n]).abs().max()) for n in after_whole) < 1e-6


def test_the_proximal_anchor_is_the_trainer_before_the_batch_and_moves_only_with_it() -> None:
    model = policy()
    settings = UpdateSettings(loss=Grpo(), correction=CorrectionSettings(anchor=Anchor.PROXIMAL))
    first = anchored(model, group_of_rollouts(), settings)
    optimizer = make_optimizer(model, OptimizerSettings(lr=3e-2))
    at_start = train_step(model, optimizer, first, settings, trainer_version=0)
    # The behavior policy is far away, the anchor is not.
    assert at_start.clip_fraction == 0 and at_start.cut_fraction > 0
    second = train_step(model, optimizer, first, settings, trainer_version=0)
    assert second.clip_fraction > 0
    again = anchored(model, group_of_rollouts(), settings)
    assert train_step(model, optimizer, again, settings, trainer_version=1).clip_fraction == 0


def test_a_batch_without_its_proximal_logprobs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rollout '1', step 0\) has no proximal logprobs"):
        one_step(group_of_rollouts(), correction=CorrectionSettings(anchor=Anchor.PROXIMAL))


def test_samples_of_weight_zero_change_nothing() -> None:
    samples = group_of_rollouts()
    marked = [dataclasses.replace(s, weight=np.zeros_like(s.weight)) for s in everything()]
    plain, after_plain = one_step(samples)
    mixed, after_mixed = one_step(marked[:5] + samples + marked[5:])
    assert plain == mixed
    assert all(torch.equal(after_plain[name], after_mixed[name]) for name in after_plain)


def test_the_gradient_is_clipped_to_its_norm() -> None:
    start = snapshot(policy(torch.float64))
    metrics, after = one_step(everything(), max_grad_norm=1e-3)
    moved = math.sqrt(sum(float((after[name] - start[name]).pow(2).sum()) for name in start))
    assert metrics.gradient_norm > 0.01
    assert moved == pytest.approx(1e-3, rel=1e-3)  # SGD with lr 1 moves by the clipped gradient


def huge(scale: float) -> list[Sample]:
    forest = Forest()
    state = forest.ids(4)
    forest.add(state, forest.ids(3), advantage=scale)
    forest.add(state, forest.ids(3), advantage=scale)
    return forest.samples


ICEPOP_OF_NOTHING = CorrectionSettings(mask=MismatchMask.ICEPOP, icepop_min=1e30, icepop_max=1e31)


@pytest.mark.parametrize(
    ("reason", "samples", "settings"),
    [
        ("loss_not_finite", huge(3e38), {}),
        ("gradient_not_finite", huge(1e24), {}),
        ("gradient_spike", huge(1e3), {"spike_grad_norm": 1.0}),
        ("all_tokens_masked", huge(1.0), {"correction": ICEPOP_OF_NOTHING}),
        (
            "all_tokens_masked",
            huge(1.0),
            {"correction": CorrectionSettings(mask=MismatchMask.MIS, mis_max=1e-30)},
        ),
        ("no_action_tokens", [dataclasses.replace(s, weight=np.zeros_like(s.weight)) for s in huge(1.0)], {}),
    ],
)
def test_a_skipped_step_is_reported_and_touches_neither_parameters_nor_optimizer(
    reason: str, samples: list[Sample], settings: dict[str, Any]
) -> None:
    model = policy()
    optimizer = make_optimizer(model, OptimizerSettings())
    train_step(model, optimizer, group_of_rollouts(), UpdateSettings(), trainer_version=0)
    before = snapshot(model)
    moments = [{k: v.clone() for k, v in optimizer.state[p].items()} for p in model.parameters()]
    metrics = train_step(model, optimizer, samples, UpdateSettings(**settings), trainer_version=1)
    assert not metrics.applied and metrics.skip_reason == reason
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    for p, kept in zip(model.parameters(), moments, strict=True):
        assert all(torch.equal(optimizer.state[p][key], kept[key]) for key in kept)
    assert all(p.grad is None for p in model.parameters())
    assert train_step(model, optimizer, group_of_rollouts(), UpdateSettings(), trainer_version=1).applied


def test_a_step_is_applied_if_the_mask_leaves_one_sample_of_it() -> None:
    model = policy()
    samples = huge(1.0)
    (logprobs, _) = recompute_logprobs(model, samples, UpdateSettings())
    kept = dataclasses.replace(samples[0], behavior_logprobs=logprobs)
    far = dataclasses.replace(samples[1], behavior_logprobs=samples[1].behavior_logprobs - 9)
    correction = CorrectionSettings(mask=MismatchMask.ICEPOP, icepop_min=0.9, icepop_max=1.1)
    optimizer = make_optimizer(model, OptimizerSettings())
    metrics = train_step(
        model, optimizer, [kept, far], UpdateSettings(correction=correction), trainer_version=0
    )
    assert metrics.applied and metrics.cut_fraction == 0.5


def test_a_model_with_nan_weights_skips_the_step() -> None:
    model = policy()
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    optimizer = make_optimizer(model, OptimizerSettings())
    metrics = train_step(model, optimizer, group_of_rollouts(), UpdateSettings(), trainer_version=0)
    assert metrics.skip_reason == "loss_not_finite" and not optimizer.state


def test_supervised_training_weighs_tokens_and_ignores_advantages() -> None:
    samples = group_of_rollouts()
    flipped = [dataclasses.replace(s, advantage=-s.advantage) for s in samples]
    doubled = [dataclasses.replace(s, weight=s.weight * 2) for s in samples]
    losses = [one_step(batch, loss=Sft())[0].loss for batch in (samples, flipped, doubled)]
    assert losses[0] > 0 and losses[1] == losses[0] and losses[2] == pytest.approx(2 * losses[0])


def test_a_batch_is_split_by_group_in_queue_order() -> None:
    positions = (4, 2, 7, 4, 5, 9, 2)
    assert split_train_steps(positions, 2) == [[2, 4], [5, 7, 9]]
    assert split_train_steps(positions, 99) == [[2], [4], [5], [7], [9]]
    assert split_train_steps([], 2) == []
    with pytest.raises(ValueError, match="at least 1 train step"):
        split_train_steps(positions, 0)
