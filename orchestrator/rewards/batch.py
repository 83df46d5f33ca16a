"""Advantages on the scale of their batch, as REINFORCE++ takes them: after the group's baseline, over everything that trains together.

    none     Â
    std      Â / (s + 1e-4)          s = standard deviation of Â over the action tokens of the batch
    whiten   (Â − m) / (s + 1e-4)    m = their mean

Groups have no batch when their rewards are written, so what the data pool keeps is Â; the trainer scales what it claims. A batch is
closed once and never changes, so its scale is the same whenever it is computed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.rewards.returns import EQUAL, STD_FLOOR

BatchScaling = Literal["none", "std", "whiten"]


@dataclass(frozen=True, slots=True)
class BatchScale:
    """Advantage in, scaled advantage out: (Â − shift) / divisor."""

    shift: float = 0.0
    divisor: float = 1.0


def batch_scale(advantages: Sequence[float], tokens: Sequence[int], how: BatchScaling) -> BatchScale:
    """The scale of a batch whose steps have these advantages and numbers of action tokens that train.

    Without tokens, or where all advantages are equal, there is no spread to divide by: the advantages stay as they are, or with
    `whiten` become 0.

    Two steps of 3 and 1 tokens, advantages 1 and −1: m = 0.5, s = √(1 − 0.25) = 0.866.

    >>> scale = batch_scale([1.0, -1.0], [3, 1], "whiten")
    >>> scale.shift, round(scale.divisor, 4)
    (0.5, 0.8661)
    >>> batch_scale([1.0, -1.0], [3, 1], "std").shift, batch_scale([1.0, -1.0], [3, 1], "none").divisor
    (0.0, 1.0)
    """
    total = sum(tokens)
    if how == "none" or not total:
        return BatchScale()
    mean = math.fsum(a * n for a, n in zip(advantages, tokens, strict=True)) / total
    spread = math.sqrt(
        math.fsum(n * (a - mean) ** 2 for a, n in zip(advantages, tokens, strict=True)) / total
    )
    return BatchScale(mean if how == "whiten" else 0.0, spread + STD_FLOOR if spread > EQUAL else 1.0)
