"""A batch's parts with advantages on the batch's scale (orchestrator/rewards/batch.py)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orchestrator.rewards.batch import BatchScaling, batch_scale
from trainer.batch import Part


def scaled_parts(parts: Sequence[Part], how: BatchScaling) -> list[Part]:
    """The same parts; every advantage is scaled by what all train steps of the batch have together."""
    if how == "none":
        return list(parts)
    samples = [sample for part in parts for sample in part.samples]
    scale = batch_scale(
        [float(sample.advantage[0]) for sample in samples],  # one advantage per step
        [sample.trained_tokens for sample in samples],
        how,
    )
    return [
        replace(
            part,
            samples=[
                replace(
                    sample,
                    advantage=((sample.advantage - scale.shift) / scale.divisor).astype(np.float32),
                )
                for sample in part.samples
            ],
        )
        for part in parts
    ]
