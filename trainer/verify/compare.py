"""The checks: merged against vanilla, both against the stored values.

A gradient's difference is ‖Δ‖₂ ÷ ‖vanilla‖₂ over all parameters taken as one vector. A second check, max |Δ| ÷ max |vanilla|, shows a single
wrong element. A loss is a sum that may cancel, and is therefore compared absolutely below 1 and relatively above.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from trainer.learner import update_settings
from trainer.loss.metrics import TrainStepMetrics
from trainer.samples import Sample
from trainer.tree.execute import score
from trainer.tree.pack import Pack, pack_samples
from trainer.update import UpdateSettings, anchored
from trainer.verify.merged import Gradients, step_gradients
from trainer.verify.precision import Float64Throughout
from trainer.verify.rounding import bfloat16_errors
from trainer.verify.stored import RecordedBatch
from trainer.verify.vanilla import Vanilla, detach_tree_attention, vanilla_gradients
from trainer.verify.weights import load_recorded

Dtype = Literal["float64", "float32"]
BOUNDS: dict[Dtype, float] = {"float64": 1e-10, "float32": 1e-5}  # of loss and gradient
LOGPROB_BOUNDS: dict[Dtype, float] = {"float64": 1e-10, "float32": 1e-4}  # nats, the worst token


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """One line of the table. `ours` and `theirs` are the compared values; without a bound the difference is only reported."""

    name: str
    ours: float
    theirs: float
    difference: float
    bound: float | None

    @property
    def missed(self) -> bool:
        """Whether the bound is missed; also true for a difference that is not a number."""
        return self.bound is not None and not self.difference <= self.bound


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ComparedStep:
    """One train step, computed twice. `logprobs` are the merged ones along the pack's loss edges, on CPU."""

    pack: Pack
    metrics: TrainStepMetrics
    gradients: Gradients
    logprobs: Tensor
    vanilla: Vanilla


def verify(recorded: RecordedBatch, dtype: Dtype, *, bfloat16: bool = False) -> list[ComparedFigure]:
    """Compute every train step of the batch at the weights from which the batch was trained, merged and alone, and compare. With `bfloat16`, also
    measure its rounding errors (rounding.py).

    Raises ValueError if the model cannot be loaded or merged.
    """
    settings = update_settings(recorded.config.trainer)
    wide = Float64Throughout() if dtype == "float64" else contextlib.nullcontext()
    with wide:
        model = load_recorded(recorded.checkpoint, recorded.config.trainer, getattr(torch, dtype))
        trained = [part.samples for part in recorded.parts if part.samples]  # a train step may have none
        samples = [anchored(model, part, settings) for part in trained]
        merged = [_merged(model, part, settings, recorded.version) for part in samples]
        detach_tree_attention(model)
        steps = [
            ComparedStep(
                pack=pack,
                metrics=metrics,
                gradients=gradients,
                logprobs=logprobs,
                vanilla=vanilla_gradients(model, part, settings),
            )
            for (pack, metrics, gradients, logprobs), part in zip(merged, samples, strict=True)
        ]
    tolerance = recorded.config.gateway.canary_tolerance
    return [
        *_exactness(steps, BOUNDS[dtype], LOGPROB_BOUNDS[dtype]),
        *(_rounding(recorded, samples, settings) if bfloat16 else ()),
        *_behavior(steps, recorded.version, tolerance),
        *_counts(steps, recorded.metrics),
    ]


def _rounding(
    recorded: RecordedBatch, samples: Sequence[Sequence[Sample]], settings: UpdateSettings
) -> list[ComparedFigure]:
    model = load_recorded(recorded.checkpoint, recorded.config.trainer, torch.bfloat16)
    merged, alone = bfloat16_errors(model, samples, settings)
    return [
        ComparedFigure(
            name="bfloat16 gradient, from float32",
            ours=merged,
            theirs=alone,
            difference=merged - alone,
            bound=None,
        )
    ]


def _merged(
    model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings, version: int
) -> tuple[Pack, TrainStepMetrics, Gradients, Tensor]:
    pack = pack_samples(samples, settings.budget)
    metrics, gradients = step_gradients(model, samples, settings, version)
    return pack, metrics, gradients, score(model, pack, settings.head_chunk).logprobs.cpu()


def _exactness(steps: Sequence[ComparedStep], bound: float, logprob_bound: float) -> list[ComparedFigure]:
    """One check per quantity, from the train step with the largest difference."""
    losses, vectors, elements, logprobs = [], [], [], []
    for step in steps:
        ours, theirs = step.metrics.loss, step.vanilla.loss
        losses.append(
            ComparedFigure(
                name="loss",
                ours=ours,
                theirs=theirs,
                difference=abs(ours - theirs) / max(1.0, abs(theirs)),
                bound=bound,
            )
        )
        vectors.append(_gradient(step, "gradient", 2.0, bound))
        elements.append(_gradient(step, "gradient, worst element", math.inf, bound))
        largest = ComparedFigure(
            name="logprob, worst token",
            ours=float(step.logprobs.mean()),
            theirs=float(step.vanilla.logprobs.mean()),
            difference=float((step.logprobs - step.vanilla.logprobs).abs().max()),
            bound=logprob_bound,
        )
        logprobs.append(largest)
    return [max(lines, key=_badness) for lines in (losses, vectors, elements, logprobs)]


def _badness(check: ComparedFigure) -> float:
    return math.inf if math.isnan(check.difference) else check.difference


def _gradient(step: ComparedStep, name: str, order: float, bound: float) -> ComparedFigure:
    ours, theirs = step.gradients, step.vanilla.gradients
    if ours.keys() != theirs.keys():  # a skipped step has none
        return ComparedFigure(
            name=name, ours=_norm(ours, order), theirs=_norm(theirs, order), difference=math.nan, bound=bound
        )
    distance = _norm({key: ours[key] - theirs[key] for key in theirs}, order)
    size = _norm(theirs, order)
    return ComparedFigure(
        name=name,
        ours=_norm(ours, order),
        theirs=size,
        difference=distance / size if size else (math.nan if distance else 0.0),
        bound=bound,
    )


def _norm(gradients: Gradients, order: float) -> float:
    parts = [torch.linalg.vector_norm(g, order, dtype=torch.float64) for g in gradients.values()]
    return float(torch.linalg.vector_norm(torch.stack(parts), order)) if parts else 0.0


def _behavior(steps: Sequence[ComparedStep], version: int, tolerance: float) -> list[ComparedFigure]:
    """Trainer against rollout server. Only tokens of the same version must agree: other weights made the others."""
    trainer = np.concatenate([step.logprobs.double().numpy() for step in steps])
    behavior = np.concatenate(
        [step.pack.edges.gather(step.pack.samples, lambda s: s.behavior_logprobs) for step in steps]
    )
    versions = np.concatenate(
        [step.pack.edges.gather(step.pack.samples, lambda s: s.versions) for step in steps]
    )
    checks = []
    for name, chosen, bound in (
        (f"behavior logprob, version {version}", versions == version, tolerance),
        ("behavior logprob, other versions", versions != version, None),
    ):
        if chosen.any():
            differences = np.abs(trainer[chosen] - behavior[chosen])
            check = partial(
                ComparedFigure, ours=float(trainer[chosen].mean()), theirs=float(behavior[chosen].mean())
            )
            checks.append(check(name=f"{name}: mean", difference=float(differences.mean()), bound=bound))
            checks.append(check(name=f"{name}: worst", difference=float(differences.max()), bound=None))
    return checks


def _counts(steps: Sequence[ComparedStep], stored: Sequence[Any]) -> list[ComparedFigure]:
    actions = sum(step.metrics.action_tokens for step in steps)
    naive = sum(step.metrics.naive_tokens for step in steps)
    forwarded = sum(step.vanilla.forwarded for step in steps)
    merged = sum(step.metrics.merged_tokens for step in steps)
    checks = [
        _count("action tokens", actions, sum(len(step.vanilla.logprobs) for step in steps)),
        _count("tokens of rows", naive, forwarded),
        ComparedFigure(
            name="tokens forwarded",
            ours=merged,
            theirs=forwarded,
            difference=float(merged - forwarded),
            bound=None,
        ),
    ]
    for name, key, ours in (
        ("action tokens, as stored", "action_tokens", actions),
        ("tokens of rows, as stored", "tokens_naive", naive),
    ):
        if stored:
            checks.append(_count(name, ours, sum(values[key] for values in stored)))
    return checks


def _count(name: str, ours: int, theirs: int) -> ComparedFigure:
    return ComparedFigure(
        name=name, ours=ours, theirs=theirs, difference=float(abs(ours - theirs)), bound=0.0
    )
