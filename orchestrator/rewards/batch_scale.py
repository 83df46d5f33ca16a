"""Advantages on the scale of their batch, as in REINFORCE++: after the group's baseline, over everything that trains together.

    none     Â
    std      Â / (s + 1e-4)          s = standard deviation of Â over the action tokens of the batch
    whiten   (Â − m) / (s + 1e-4)    m = their mean

Groups have no batch when their rewards are written, so the data pool keeps Â and the trainer scales the batch that it claims. A batch is
closed once and never changes, so its scale is the same at every computation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.contracts.choices import BatchScaling

STD_FLOOR = 1e-4  # REINFORCE++'s
EQUAL = 1e-9  # a smaller spread of float sums counts as 0


@dataclass(frozen=True, slots=True)
class BatchScale:
    """Maps an advantage to its scaled advantage: (Â − shift) / divisor."""

    shift: float = 0.0
    divisor: float = 1.0


def batch_scale(advantages: Sequence[float], tokens: Sequence[int], how: BatchScaling) -> BatchScale:
    """The scale of a batch, from the advantages of its steps and their numbers of trained action tokens.

    Without tokens, or if all advantages are equal, the spread is 0, and nothing is divided: the advantages stay unchanged, or
    become 0 with `whiten`.

    Two steps of 3 and 1 tokens, advantages 1 and −1: m = 0.5, s = √(1 − 0.25) = 0.866.

    >>> scale = batch_scale([1.0, -1.0], [3, 1], BatchScaling.WHITEN)
    >>> scale.shift, round(scale.divisor, 4)
    (0.5, 0.8661)
    >>> batch_scale([1.0, -1.0], [3, 1], BatchScaling.STD).shift, batch_scale([1.0, -1.0], [3, 1], BatchScaling.NONE).divisor
    (0.0, 1.0)
    """
    total = sum(tokens)
    if how == BatchScaling.NONE or not total:
        return BatchScale()
    mean = math.fsum(a * n for a, n in zip(advantages, tokens, strict=True)) / total
    spread = math.sqrt(
        math.fsum(n * (a - mean) ** 2 for a, n in zip(advantages, tokens, strict=True)) / total
    )
    return BatchScale(
        mean if how == BatchScaling.WHITEN else 0.0, spread + STD_FLOOR if spread > EQUAL else 1.0
    )
