"""A batch's parts with advantages on the batch's scale (orchestrator/rewards/batch_scale.py)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orchestrator.contracts.choices import BatchScaling
from orchestrator.rewards.batch_scale import batch_scale
from trainer.batch import BatchPart


def scaled_parts(parts: Sequence[BatchPart], how: BatchScaling) -> list[BatchPart]:
    """The same parts with scaled advantages. The scale is computed over all train steps of the batch."""
    if how == BatchScaling.NONE:
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
