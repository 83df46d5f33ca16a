"""One train step of all ranks: the same result as trainer/update.py on one, but for the order in which floating-point numbers are added.

    samples of the train step, the same on every rank
        ──normalisers over all of them──▶ shares by cost ──▶ own tree, rounds of passes ──▶ norm over all ranks ──▶ clip ──▶ own shard's step

Whether the step is skipped is one decision: of the loss of any rank, of a norm that is summed over ranks. So all step, or none.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.spent import spending
from trainer.expert_bias import move_biases
from trainer.loss.aggregation import normalisers
from trainer.loss.metrics import MetricSums, TrainStepMetrics
from trainer.ranks.meeting import Ranks
from trainer.ranks.routing import SpreadRouting
from trainer.ranks.shard import gradients
from trainer.ranks.share import pair_cost, shares
from trainer.ranks.walk import backward_together, score_together
from trainer.routing import routing_of
from trainer.samples import Floats, Sample
from trainer.tree.pack import Pack, pack_samples
from trainer.update import PackLoss, UpdateSettings, skip_reason


def train_step_together(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    settings: UpdateSettings,
    ranks: Ranks,
    *,
    trainer_version: int,
) -> TrainStepMetrics:
    """Do one optimizer step on `samples`, which are the same on every rank, and report it, the same on every rank.

    The model must be spread (shard.py). Raises what packing raises on any rank, on all of them.
    """
    factors = normalisers(samples, settings.aggregation)
    optimizer.zero_grad(set_to_none=True)
    with spending("tree"):
        split, pack = _own_pack(model, samples, settings, ranks, trained_only=True)
    mine = split[ranks.rank]
    sums = MetricSums(trainer_version)
    own = np.array([factors[mine[i]] for i in pack.indices])
    finite, logprobs = _backward(model, pack, own, settings, sums, ranks)
    norm = 0.0
    with spending("optimizer"):
        skip = None if any(factors) else "no_action_tokens"
        if not finite:
            skip = "loss_not_finite"
        if skip is None:
            norm = _clipped_norm(optimizer, settings.max_grad_norm, ranks)
            skip = skip_reason(norm, settings)
        if skip is None:
            optimizer.step()
            sums.bias_range = move_biases(model, sums.load, settings.bias_rate)
    optimizer.zero_grad(set_to_none=True)
    metrics = sums.result(skip_reason=skip, gradient_norm=norm)
    if not settings.keep_logprobs:
        return metrics
    own_logprobs = pack.by_sample([samples[i] for i in mine], logprobs)
    return replace(metrics, logprobs=_of_all(samples, split, own_logprobs, ranks))


def anchored_together(
    model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings, ranks: Ranks
) -> list[Sample]:
    """As `anchored` of one rank; proximal logprobs are with those samples alone that this rank is going to train.

    Raises ValueError on every rank where some of any rank's are not finite.
    """
    if settings.correction.anchor == "behavior":
        return list(samples)
    split, pack = _own_pack(model, samples, settings, ranks, trained_only=False)
    mine = split[ranks.rank]
    logprobs = score_together(model, pack, ranks, settings.head_chunk).logprobs.float().cpu().numpy()
    found = list(samples)
    ends = np.cumsum([samples[i].action_len for i in mine], dtype=np.int64)
    with ranks.agreeing(ValueError):  # some are not finite
        for place, values in zip(mine, np.split(logprobs, ends)[:-1], strict=True):
            found[place] = replace(samples[place], proximal_logprobs=values.astype(np.float32))
    return found


def _own_pack(
    model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings, ranks: Ranks, *, trained_only: bool
) -> tuple[list[list[int]], Pack]:
    """Each rank's places in `samples`, and the pack of this rank's."""
    split = shares(samples, ranks.size, pair_cost(model))
    with ranks.agreeing(ConfigurationError):  # a budget that is too small for one rank's longest path
        pack = pack_samples(
            [samples[i] for i in split[ranks.rank]], settings.budget, trained_only=trained_only
        )
    return split, pack


def _backward(
    model: nn.Module,
    pack: Pack,
    factors: np.ndarray,
    settings: UpdateSettings,
    sums: MetricSums,
    ranks: Ranks,
) -> tuple[bool, Floats]:
    """Add all ranks' gradients and count all ranks' packs. False when any rank's loss is not finite; and this rank's edges' logprobs."""
    objective = PackLoss(pack, factors, settings)
    routing = routing_of(SpreadRouting, model, pack, settings.balance)
    scores = backward_together(model, pack, objective, ranks, settings.head_chunk, routing)
    sums.add(
        pack,
        scores.loss if math.isfinite(scores.loss) else 0.0,  # JSON knows no NaN
        scores.logprobs.double().cpu().numpy(),
        objective.behavior.astype(np.float64),
        scores.entropies.double().cpu().numpy(),
        clipped=objective.clipped,
        cut=objective.cut,
    )
    finite = math.isfinite(scores.loss)
    said = ranks.exchange(
        {
            "finite": finite,
            "sums": sums.json() if finite else None,
            "balance": routing.value if routing else 0.0,
        }
    )
    logprobs = scores.logprobs.float().cpu().numpy()
    if not all(one["finite"] for one in said):
        return False, logprobs
    for rank, one in enumerate(said):
        if rank != ranks.rank:
            sums.absorb(one["sums"])
    if routing is not None:
        balance = sum(one["balance"] for one in said)
        sums.routed(balance if settings.balance else None, routing.imbalance, routing.load)
    return True, logprobs


def _of_all(samples: Sequence[Sample], split: Sequence[Sequence[int]], mine: Floats, ranks: Ranks) -> Floats:
    """float32 of every action token of `samples`, sample after sample; `mine` are those of this rank's, and `split` says whose are whose."""
    ends = np.cumsum([sample.action_len for sample in samples], dtype=np.int64)
    found = np.full(ends[-1] if len(ends) else 0, np.nan, np.float32)
    for own, data in zip(split, ranks.gathered(mine.tobytes()), strict=True):
        places = [np.arange(ends[i] - samples[i].action_len, ends[i]) for i in own]
        found[np.concatenate([np.empty(0, np.int64), *places])] = np.frombuffer(data, np.float32)
    return found


def _clipped_norm(optimizer: torch.optim.Optimizer, longest: float, ranks: Ranks) -> float:
    """The norm of the whole gradient; every rank's part of it is shortened so that the whole is no longer than `longest`."""
    squares = sum(float(part.double().square().sum()) for part in gradients(optimizer))
    norm = math.sqrt(ranks.total(squares))
    factor = longest / (norm + 1e-6)  # as torch's clip_grad_norm_
    if factor < 1:
        for part in gradients(optimizer):
            part.mul_(factor)
    return norm
