"""One train step of all ranks: the same result as trainer/update.py on one rank, except for the order of floating-point additions.

    samples of the train step, the same on every rank
        ──normalisers over all of them──▶ shares by cost ──▶ own tree, rounds of passes ──▶ norm over all ranks ──▶ clip ──▶ own shard's step

Skipping the step is one common decision: it depends on the losses of all ranks and on the norm over all ranks. So all ranks step, or none.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from orchestrator.contracts.choices import Anchor
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime.phase_timer import phase
from trainer.loss.aggregation import normalisers
from trainer.loss.metrics import MetricSums, TrainStepMetrics
from trainer.ranks.balance import pair_cost, shares
from trainer.ranks.fsdp import gradients
from trainer.ranks.lockstep import backward_together, score_together
from trainer.ranks.process_group import Ranks
from trainer.ranks.routing import SpreadRouting
from trainer.samples import Floats, Sample
from trainer.tree.pack import Pack, pack_samples
from trainer.tree.routing import routing_of
from trainer.update import PackLoss, UpdateSettings, finish


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

    The model must be spread (fsdp.py). An error of packing on any rank is raised on all ranks.
    """
    factors = normalisers(samples, settings.aggregation)
    optimizer.zero_grad(set_to_none=True)
    with phase("tree"):
        split, pack = _own_pack(model, samples, settings, ranks, trained_only=True)
    indices = split[ranks.rank]
    sums = MetricSums(trainer_version)
    local_factors = np.array([factors[indices[i]] for i in pack.indices])
    finite, logprobs = _backward(model, pack, local_factors, settings, sums, ranks)
    clip = partial(_clipped_norm, ranks)
    metrics = finish(model, optimizer, sums, settings, clip=clip, trained=any(factors), finite=finite)
    if not settings.keep_logprobs:
        return metrics
    local_logprobs = pack.by_sample([samples[i] for i in indices], logprobs)
    return replace(metrics, logprobs=_of_all(samples, split, local_logprobs, ranks))


def anchored_together(
    model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings, ranks: Ranks
) -> list[Sample]:
    """Like `anchored` of one rank, but only the samples that this rank will train get proximal logprobs.

    Raises ValueError on every rank if some proximal logprob on any rank is not finite.
    """
    if settings.correction.anchor == Anchor.BEHAVIOR:
        return list(samples)
    split, pack = _own_pack(model, samples, settings, ranks, trained_only=False)
    indices = split[ranks.rank]
    logprobs = score_together(model, pack, ranks, settings.head_chunk).logprobs.float().cpu().numpy()
    found = list(samples)
    ends = np.cumsum([samples[i].action_len for i in indices], dtype=np.int64)
    with ranks.agreeing(ValueError):  # some are not finite
        for index, values in zip(indices, np.split(logprobs, ends)[:-1], strict=True):
            found[index] = replace(samples[index], proximal_logprobs=values.astype(np.float32))
    return found


def _own_pack(
    model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings, ranks: Ranks, *, trained_only: bool
) -> tuple[list[list[int]], Pack]:
    """Each rank's indices in `samples`, and the pack of this rank's samples."""
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
    """Add all ranks' gradients and count all ranks' packs. Returns False if any rank's loss is not finite, and the logprobs of this rank's edges."""
    objective = PackLoss(pack, factors, settings)
    routing = routing_of(SpreadRouting, model, pack, settings.balance)
    scores = backward_together(model, pack, objective, ranks, settings.head_chunk, routing)
    sums.add(
        pack,
        scores.loss if math.isfinite(scores.loss) else 0.0,  # JSON has no NaN
        scores.logprobs.double().cpu().numpy(),
        objective.behavior.astype(np.float64),
        scores.entropies.double().cpu().numpy(),
        clipped=objective.clipped,
        cut=objective.cut,
    )
    finite = math.isfinite(scores.loss)
    reported = ranks.exchange(
        {
            "finite": finite,
            "sums": sums.json() if finite else None,
            "balance": routing.value if routing else 0.0,
        }
    )
    logprobs = scores.logprobs.float().cpu().numpy()
    if not all(report["finite"] for report in reported):
        return False, logprobs
    for rank, report in enumerate(reported):
        if rank != ranks.rank:
            sums.absorb(report["sums"])
    if routing is not None:
        balance = sum(report["balance"] for report in reported)
        sums.routed(balance if settings.balance else None, routing.imbalance, routing.load)
    return True, logprobs


def _of_all(samples: Sequence[Sample], split: Sequence[Sequence[int]], mine: Floats, ranks: Ranks) -> Floats:
    """float32 of every action token of `samples`, sample after sample. `mine`: this rank's values; `split`: each rank's indices in `samples`."""
    ends = np.cumsum([sample.action_len for sample in samples], dtype=np.int64)
    found = np.full(ends[-1] if len(ends) else 0, np.nan, np.float32)
    for indices, data in zip(split, ranks.gathered(mine.tobytes()), strict=True):
        places = [np.arange(ends[i] - samples[i].action_len, ends[i]) for i in indices]
        found[np.concatenate([np.empty(0, np.int64), *places])] = np.frombuffer(data, np.float32)
    return found


def _clipped_norm(ranks: Ranks, optimizer: torch.optim.Optimizer, longest: float) -> float:
    """The norm of the whole gradient, before clipping. Every rank scales its part so that the whole norm is at most `longest`."""
    squares = sum(float(part.double().square().sum()) for part in gradients(optimizer))
    norm = math.sqrt(ranks.total(squares))
    factor = longest / (norm + 1e-6)  # like torch's clip_grad_norm_
    if factor < 1:
        for part in gradients(optimizer):
            part.mul_(factor)
    return norm
