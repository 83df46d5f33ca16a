"""The checks: merged against vanilla, both against what is stored.

A gradient's difference is ‖Δ‖₂ ÷ ‖vanilla‖₂ over all parameters taken as one vector, and beside it max |Δ| ÷ max |vanilla|, which a single
wrong element shows in. A loss, being a sum that may cancel, is compared absolutely below 1 and relatively above.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from trainer.learner import update_settings
from trainer.loss.metrics import TrainStepMetrics
from trainer.model import load_model
from trainer.replay import attach_replay
from trainer.samples import Sample
from trainer.tree.execute import score
from trainer.tree.forward import attach_tree_attention
from trainer.tree.pack import Pack, pack_samples
from trainer.update import UpdateSettings, anchored
from trainer.verify.merged import Gradients, step_gradients
from trainer.verify.precision import Float64Throughout
from trainer.verify.rounding import bfloat16_errors
from trainer.verify.stored import Recorded
from trainer.verify.vanilla import Vanilla, detach_tree_attention, vanilla_gradients

Dtype = Literal["float64", "float32"]
BOUNDS: dict[Dtype, float] = {"float64": 1e-10, "float32": 1e-5}  # of loss and gradient
LOGPROB_BOUNDS: dict[Dtype, float] = {"float64": 1e-10, "float32": 1e-4}  # nats, the worst token


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. `ours` and `theirs` are what was compared; without a bound the difference is only told."""

    name: str
    ours: float
    theirs: float
    difference: float
    bound: float | None

    @property
    def missed(self) -> bool:
        """True for a difference that is not a number, too."""
        return self.bound is not None and not self.difference <= self.bound


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One train step, computed twice. `logprobs` are the merged ones along the pack's loss edges, on CPU."""

    pack: Pack
    metrics: TrainStepMetrics
    gradients: Gradients
    logprobs: Tensor
    vanilla: Vanilla


def verify(recorded: Recorded, dtype: Dtype, *, bfloat16: bool = False) -> list[Check]:
    """Compute every train step of the batch at the weights that the batch began with, merged and alone, and compare; with `bfloat16` once more
    in that, for what it rounds (rounding.py).

    Raises ValueError when the model cannot be loaded or merged.
    """
    settings = update_settings(recorded.config.trainer)
    wide = Float64Throughout() if dtype == "float64" else contextlib.nullcontext()
    with wide:
        model = _load(recorded.checkpoint, dtype)
        if recorded.config.trainer.routing_replay:
            attach_replay(model)
        trained = [part.samples for part in recorded.parts if part.samples]  # a train step may have none
        samples = [anchored(model, part, settings) for part in trained]
        merged = [_merged(model, part, settings, recorded.version) for part in samples]
        detach_tree_attention(model)
        steps = [
            Step(*ours, vanilla_gradients(model, part, settings))
            for ours, part in zip(merged, samples, strict=True)
        ]
    tolerance = recorded.config.gateway.canary_tolerance
    return [
        *_exactness(steps, BOUNDS[dtype], LOGPROB_BOUNDS[dtype]),
        *(_rounding(recorded, samples, settings) if bfloat16 else ()),
        *_behavior(steps, recorded.version, tolerance),
        *_counts(steps, recorded.metrics),
    ]


def _rounding(
    recorded: Recorded, samples: Sequence[Sequence[Sample]], settings: UpdateSettings
) -> list[Check]:
    replay = recorded.config.trainer.routing_replay
    merged, alone = bfloat16_errors(recorded.checkpoint, samples, settings, replay=replay)
    return [Check("bfloat16 gradient, from float32", merged, alone, merged - alone, None)]


def _load(checkpoint: Path, dtype: Dtype) -> nn.Module:
    model = load_model(checkpoint, dtype=getattr(torch, dtype), backend=None)
    hf: Any = model
    if dtype == "float64" and getattr(hf.config, "_experts_implementation", None) == "grouped_mm":
        hf.set_experts_implementation("eager")  # that kernel knows no float64
    attach_tree_attention(model)
    return model


def _merged(
    model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings, version: int
) -> tuple[Pack, TrainStepMetrics, Gradients, Tensor]:
    pack = pack_samples(samples, settings.budget)
    metrics, gradients = step_gradients(model, samples, settings, version)
    return pack, metrics, gradients, score(model, pack, settings.head_chunk).logprobs.cpu()


def _exactness(steps: Sequence[Step], bound: float, logprob_bound: float) -> list[Check]:
    """Of several train steps the one with the largest difference stands for all, line by line."""
    losses, vectors, elements, logprobs = [], [], [], []
    for step in steps:
        ours, theirs = step.metrics.loss, step.vanilla.loss
        losses.append(Check("loss", ours, theirs, abs(ours - theirs) / max(1.0, abs(theirs)), bound))
        vectors.append(_gradient(step, "gradient", 2.0, bound))
        elements.append(_gradient(step, "gradient, worst element", math.inf, bound))
        mean = (float(step.logprobs.mean()), float(step.vanilla.logprobs.mean()))
        apart = float((step.logprobs - step.vanilla.logprobs).abs().max())
        logprobs.append(Check("logprob, worst token", *mean, apart, logprob_bound))
    return [max(lines, key=_badness) for lines in (losses, vectors, elements, logprobs)]


def _badness(check: Check) -> float:
    return math.inf if math.isnan(check.difference) else check.difference


def _gradient(step: Step, name: str, order: float, bound: float) -> Check:
    ours, theirs = step.gradients, step.vanilla.gradients
    if ours.keys() != theirs.keys():  # a step that was skipped has none
        return Check(name, _norm(ours, order), _norm(theirs, order), math.nan, bound)
    apart = _norm({key: ours[key] - theirs[key] for key in theirs}, order)
    size = _norm(theirs, order)
    return Check(
        name, _norm(ours, order), size, apart / size if size else (math.nan if apart else 0.0), bound
    )


def _norm(gradients: Gradients, order: float) -> float:
    parts = [torch.linalg.vector_norm(g, order, dtype=torch.float64) for g in gradients.values()]
    return float(torch.linalg.vector_norm(torch.stack(parts), order)) if parts else 0.0


def _behavior(steps: Sequence[Step], version: int, tolerance: float) -> list[Check]:
    """Trainer against rollout server. Only tokens of the very version must agree: others were made by other weights."""
    trainer = np.concatenate([step.logprobs.double().numpy() for step in steps])
    behavior = np.concatenate(
        [step.pack.edges.gather(step.pack.samples, lambda s: s.behavior_logprobs) for step in steps]
    )
    made_by = np.concatenate(
        [step.pack.edges.gather(step.pack.samples, lambda s: s.versions) for step in steps]
    )
    checks = []
    for name, chosen, bound in (
        (f"behavior logprob, version {version}", made_by == version, tolerance),
        ("behavior logprob, other versions", made_by != version, None),
    ):
        if chosen.any():
            apart = np.abs(trainer[chosen] - behavior[chosen])
            means = (float(trainer[chosen].mean()), float(behavior[chosen].mean()))
            checks.append(Check(f"{name}: mean", *means, float(apart.mean()), bound))
            checks.append(Check(f"{name}: worst", *means, float(apart.max()), None))
    return checks


def _counts(steps: Sequence[Step], stored: Sequence[Any]) -> list[Check]:
    actions = sum(step.metrics.action_tokens for step in steps)
    naive = sum(step.metrics.naive_tokens for step in steps)
    forwarded = sum(step.vanilla.forwarded for step in steps)
    merged = sum(step.metrics.merged_tokens for step in steps)
    checks = [
        _count("action tokens", actions, sum(len(step.vanilla.logprobs) for step in steps)),
        _count("tokens of rows", naive, forwarded),
        Check("tokens forwarded", merged, forwarded, float(merged - forwarded), None),
    ]
    for name, key, ours in (
        ("action tokens, as stored", "action_tokens", actions),
        ("tokens of rows, as stored", "tokens_naive", naive),
    ):
        if stored:
            checks.append(_count(name, ours, sum(values[key] for values in stored)))
    return checks


def _count(name: str, ours: int, theirs: int) -> Check:
    return Check(name, ours, theirs, float(abs(ours - theirs)), 0.0)
