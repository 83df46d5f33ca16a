"""What bfloat16 rounds, merged and alone: the gradient's distance to that of float32 at the same weights.

Each side strays from float32 by its own rounding; on one batch the merged side's share may be above or below 1 (0.3 to 1.45 on single tiny
models, 0.84 to 0.90 over 24 of each), so there is no bound. Mixtures of experts are comparable with recorded experts only: a router that
rounds to another expert on one side makes an error that is not of rounding.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.model import load_model
from trainer.replay import attach_replay
from trainer.samples import Sample
from trainer.tree.forward import attach_tree_attention
from trainer.update import UpdateSettings
from trainer.verify.merged import Gradients, step_gradients
from trainer.verify.vanilla import detach_tree_attention, vanilla_gradients


def bfloat16_errors(
    checkpoint: Path, steps: Sequence[Sequence[Sample]], settings: UpdateSettings, *, replay: bool
) -> tuple[float, float]:
    """(merged, alone): ‖gradient − float32's‖₂ ÷ ‖float32's‖₂, all train steps as one vector. Samples have what their anchor needs.

    Raises ValueError when the model cannot be merged in bfloat16.
    """
    model = load_model(checkpoint, dtype=torch.bfloat16, backend=None)
    attach_tree_attention(model)
    if replay:
        attach_replay(model)
    merged = [step_gradients(model, samples, settings)[1] for samples in steps]
    detach_tree_attention(model)
    alone = [vanilla_gradients(model, samples, settings).gradients for samples in steps]
    model.float()  # the weights stay as bfloat16 has them
    exact = [vanilla_gradients(model, samples, settings).gradients for samples in steps]
    return _distance(merged, exact), _distance(alone, exact)


def _distance(found: Sequence[Gradients], exact: Sequence[Gradients]) -> float:
    """NaN where a step was skipped on one side."""
    if any(one.keys() != other.keys() for one, other in zip(found, exact, strict=True)):
        return math.nan
    apart = sum(
        float((one[name].double() - other[name].double()).pow(2).sum())
        for one, other in zip(found, exact, strict=True)
        for name in other
    )
    size = sum(float(gradient.double().pow(2).sum()) for other in exact for gradient in other.values())
    return math.sqrt(apart / size) if size else math.nan
