"""One train step: samples in, one optimizer step and its metrics out.

    samples ──normalisers (before merging)──┐
            ──pack_samples──▶ one tree, pass by pass: forward, loss, backward (gradients add up) ──▶ clip ──▶ optimizer step

A loss or gradient that is not finite skips the step: parameters and optimizer state stay as they were, bit by bit.
The function uses neither the data pool nor files.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from orchestrator.contracts.choices import Aggregation, Anchor, MismatchMask
from orchestrator.runtime.phase_timer import phase
from trainer.expert_bias import move_biases
from trainer.logprobs import CHUNK
from trainer.loss.aggregation import normalisers
from trainer.loss.base import Loss, Tokens
from trainer.loss.cispo import Cispo
from trainer.loss.correction import CorrectionSettings, correct
from trainer.loss.metrics import MetricSums, TrainStepMetrics
from trainer.loss.skip_reason import SkipReason
from trainer.samples import Floats, Sample
from trainer.tree.execute import backward, score
from trainer.tree.pack import Pack, pack_samples
from trainer.tree.passes import PassBudget
from trainer.tree.plan import Longs
from trainer.tree.routing import Routing, routing_of


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """How samples become a gradient. `budget` and `head_chunk` change memory and time only, never the result."""

    loss: Loss = field(default_factory=Cispo)
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)
    aggregation: Aggregation = Aggregation.PROMPT
    negative_scale: float = 1.0  # factor of negative advantages, for every loss
    balance: float = 0.0  # coefficient of the load-balancing loss of a mixture of experts (tree/routing.py)
    bias_rate: float = 0.0  # of its selection bias, per train step (expert_bias.py)
    max_grad_norm: float = 1.0
    spike_grad_norm: float = math.inf  # a gradient norm above it skips the step
    budget: PassBudget = field(default_factory=lambda: PassBudget(8192))  # of one forward pass
    head_chunk: int = CHUNK  # rows of logits held at once
    keep_logprobs: bool = False  # report the forward pass's logprobs (TrainStepMetrics.logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW. A small eps matters when gradients are small; see CISPO's recipe. `decay_vectors`: weight decay on norms and biases too."""

    lr: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_vectors: bool = True


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """A fresh AdamW over all parameters of the model that take gradients."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": parameters}]
    if not settings.decay_vectors:
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2]},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
    return torch.optim.AdamW(
        groups,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    settings: UpdateSettings,
    *,
    trainer_version: int,
) -> TrainStepMetrics:
    """Do one optimizer step on `samples` (all micro-batches of the train step) and report it.

    The model must be attached to tree attention. The denominator counts the action tokens of train weight > 0 of
    `samples`, before merging. On a skipped step `applied` is False and `skip_reason` has the reason; gradients are dropped.
    """
    sums = MetricSums(trainer_version)
    factors = normalisers(samples, settings.aggregation)
    optimizer.zero_grad(set_to_none=True)
    with phase("tree"):
        pack = pack_samples(samples, settings.budget)
    finite, logprobs = _backward(model, pack, np.array([factors[i] for i in pack.indices]), settings, sums)
    metrics = finish(
        model, optimizer, sums, settings, clip=_clipped_norm, trained=any(factors), finite=finite
    )
    return replace(metrics, logprobs=pack.by_sample(samples, logprobs)) if settings.keep_logprobs else metrics


def finish(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    sums: MetricSums,
    settings: UpdateSettings,
    *,
    clip: Callable[[torch.optim.Optimizer, float], float],
    trained: bool,
    finite: bool,
) -> TrainStepMetrics:
    """The end of a train step after its backward passes: clip the gradients and step, or skip the step; then drop the gradients and report.

    `clip` scales them to at most a norm and returns the norm before; `trained`: some token has a train weight > 0; `finite`: the loss is finite.
    """
    skip = None if trained else SkipReason.NO_ACTION_TOKENS
    if skip is None and settings.correction.mask != MismatchMask.NONE and sums.all_cut:
        skip = SkipReason.ALL_TOKENS_MASKED  # momentum alone would move the weights
    if not finite:
        skip = SkipReason.LOSS_NOT_FINITE
    norm = 0.0
    with phase("optimizer"):
        if skip is None:
            norm = clip(optimizer, settings.max_grad_norm)
            skip = _skip_reason(norm, settings)
        if skip is None:
            optimizer.step()
            sums.bias_range = move_biases(model, sums.load, settings.bias_rate)
    optimizer.zero_grad(set_to_none=True)
    return sums.result(skip_reason=skip, gradient_norm=norm)


def _clipped_norm(optimizer: torch.optim.Optimizer, longest: float) -> float:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return float(nn.utils.clip_grad_norm_(parameters, longest))


def _skip_reason(norm: float, settings: UpdateSettings) -> SkipReason | None:
    """The reason why a gradient of this norm is not applied; None if it is applied."""
    if not math.isfinite(norm):
        return SkipReason.GRADIENT_NOT_FINITE
    return SkipReason.GRADIENT_SPIKE if norm > settings.spike_grad_norm else None


def recompute_logprobs(model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings) -> list[Floats]:
    """Trainer logprobs of every action token of every sample, float32[A] each, through the same tree backend."""
    pack = pack_samples(samples, settings.budget, trained_only=False)
    logprobs = score(model, pack, settings.head_chunk).logprobs.float().cpu().numpy()
    ends = np.cumsum([sample.action_len for sample in samples], dtype=np.int64)
    return [values.astype(np.float32) for values in np.split(logprobs, ends)[:-1]]


def anchored(model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings) -> list[Sample]:
    """The samples with the anchor's logprobs. For the proximal anchor they are the trainer's, before the first train step."""
    if settings.correction.anchor == Anchor.BEHAVIOR:
        return list(samples)
    logprobs = recompute_logprobs(model, samples, settings)
    return [
        replace(sample, proximal_logprobs=values) for sample, values in zip(samples, logprobs, strict=True)
    ]


def split_train_steps(seqs: Iterable[int], train_steps: int) -> list[list[int]]:
    """Split a batch's groups, by their queue positions, into `train_steps` parts; sizes differ by at most one.

    With fewer groups than train steps there is one part per group. No part is empty.
    """
    if train_steps < 1:
        raise ValueError(f"a batch needs at least 1 train step, got {train_steps}")
    ordered = sorted(set(seqs))
    parts = min(train_steps, len(ordered))
    cuts = [len(ordered) * i // parts for i in range(parts + 1)] if parts else [0]
    return [ordered[begin:end] for begin, end in pairwise(cuts)]


def _backward(
    model: nn.Module, pack: Pack, factors: np.ndarray[Any, Any], settings: UpdateSettings, sums: MetricSums
) -> tuple[bool, Floats]:
    """Add a pack's gradients and count it. Returns False if its loss is not finite (the gradients are then incomplete), and its edges' logprobs."""
    objective = PackLoss(pack, factors, settings)
    routing = routing_of(Routing, model, pack, settings.balance)
    scores = backward(model, pack, objective, settings.head_chunk, routing)
    if routing is not None:
        sums.routed(routing.value if settings.balance else None, routing.imbalance, routing.load)
    sums.add(
        pack,
        scores.loss,
        scores.logprobs.double().cpu().numpy(),
        objective.behavior.astype(np.float64),
        scores.entropies.double().cpu().numpy(),
        clipped=objective.clipped,
        cut=objective.cut,
    )
    return math.isfinite(scores.loss), scores.logprobs.float().cpu().numpy()


class PackLoss:
    """The loss of a pack as a function of its edges' logprobs. Each call takes some whole samples; the losses of all calls add up."""

    def __init__(self, pack: Pack, factors: np.ndarray[Any, Any], settings: UpdateSettings) -> None:
        """`factors` has the normaliser of each of the pack's samples."""
        edges, samples = pack.edges, pack.samples
        self._settings, self._sample = settings, edges.sample
        self.behavior = edges.gather(samples, lambda sample: sample.behavior_logprobs)
        proximal = settings.correction.anchor == Anchor.PROXIMAL
        self._anchor = edges.gather(samples, _proximal) if proximal else self.behavior
        self._coefficient = edges.gather(samples, lambda sample: sample.weight) * factors[edges.sample]
        self._advantage = edges.gather(samples, lambda sample: sample.advantage)
        self.clipped = self.cut = 0  # edges so far

    def __call__(self, rows: Longs, logp: torch.Tensor) -> torch.Tensor:
        """A scalar with gradient through `logp` [n], the logprobs of the edges `rows` int64[n]; the edges form whole samples."""
        settings = self._settings

        def along(values: np.ndarray[Any, Any]) -> torch.Tensor:
            return torch.from_numpy(values[rows]).to(logp)

        behavior, anchor, coefficient = along(self.behavior), along(self._anchor), along(self._coefficient)
        advantage = along(self._advantage)
        advantage = torch.where(advantage < 0, advantage * settings.negative_scale, advantage)
        owner = torch.from_numpy(np.unique(self._sample[rows], return_inverse=True)[1]).to(logp.device)
        if not settings.correction.idle:
            trainer = anchor if settings.correction.anchor == Anchor.PROXIMAL else logp
            correction = correct(settings.correction, trainer, behavior, owner)
            coefficient = coefficient * correction.weight
            self.cut += int(correction.cut.sum())
        value = settings.loss(
            Tokens(logp=logp, anchor=anchor, advantage=advantage, coefficient=coefficient, sample=owner)
        )
        self.clipped += int(value.clipped.sum())
        return value.loss


def _proximal(sample: Sample) -> Floats:
    """A sample's proximal logprobs, which `anchored` has set."""
    if sample.proximal_logprobs is None:
        raise ValueError(
            f"{sample.name} has no proximal logprobs: call trainer.update.anchored on the batch first"
        )
    return sample.proximal_logprobs
