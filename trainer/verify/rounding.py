"""The rounding errors of bfloat16, merged and alone: the gradient's distance to that of float32 at the same weights.

Each side deviates from float32 by its own rounding. On one batch the ratio of merged to alone may be above or below 1 (0.3 to 1.45 on single tiny
models, 0.84 to 0.90 over 24 of each), so the check has no bound. Mixtures of experts are comparable only with recorded experts: if a router
rounds to another expert on one side, the difference is not a rounding error.
"""

import math
from collections.abc import Sequence

from torch import nn

from trainer.samples import Sample
from trainer.update import UpdateSettings
from trainer.verify.merged import Gradients, step_gradients
from trainer.verify.vanilla import detach_tree_attention, vanilla_gradients


def bfloat16_errors(
    model: nn.Module, steps: Sequence[Sequence[Sample]], settings: UpdateSettings
) -> tuple[float, float]:
    """(merged, alone): ‖gradient − float32's‖₂ ÷ ‖float32's‖₂, all train steps as one vector. Samples have their anchor's logprobs.

    `model` is in bfloat16 and attached to tree attention; it is left in float32 and detached.
    """
    merged = [step_gradients(model, samples, settings)[1] for samples in steps]
    detach_tree_attention(model)
    alone = [vanilla_gradients(model, samples, settings).gradients for samples in steps]
    model.float()  # the weights keep their bfloat16 values
    exact = [vanilla_gradients(model, samples, settings).gradients for samples in steps]
    return _distance(merged, exact), _distance(alone, exact)


def _distance(found: Sequence[Gradients], exact: Sequence[Gradients]) -> float:
    """‖found − exact‖₂ ÷ ‖exact‖₂; NaN if a step was skipped on one side."""
    if any(gradients.keys() != reference.keys() for gradients, reference in zip(found, exact, strict=True)):
        return math.nan
    squares = sum(
        float((gradients[name].double() - reference[name].double()).pow(2).sum())
        for gradients, reference in zip(found, exact, strict=True)
        for name in reference
    )
    size = sum(
        float(gradient.double().pow(2).sum()) for reference in exact for gradient in reference.values()
    )
    return math.sqrt(squares / size) if size else math.nan
