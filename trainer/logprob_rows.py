"""Trainer logprobs of a batch as rows of the data pool: one for each sample that a train step forwarded."""

from collections.abc import Sequence

import numpy as np

from orchestrator.contracts.ids import logprobs_to_bytes
from orchestrator.pool.trainer_logprobs import TrainedStep
from trainer.batch import BatchPart
from trainer.samples import Floats


def trained_steps(parts: Sequence[BatchPart], logprobs: Sequence[Floats | None]) -> list[TrainedStep]:
    """`logprobs`: per part, float32 of every action token, sample after sample; None: not kept. Samples without a trained token have no row."""
    rows = []
    for number, (part, values) in enumerate(zip(parts, logprobs, strict=True)):
        if values is None:
            continue
        attempts = {str(rollout.rollout_id): rollout.attempt for rollout in part.rollouts}
        ends = np.cumsum([sample.action_len for sample in part.samples])
        assert len(values) == (ends[-1] if len(ends) else 0), "a logprob for each action token"
        for sample, sample_logprobs in zip(part.samples, np.split(values, ends[:-1]), strict=False):
            if np.isnan(sample_logprobs).all():
                continue
            rows.append(
                TrainedStep(
                    rollout_id=int(sample.rollout),
                    attempt=attempts[sample.rollout],
                    idx=sample.step,
                    part=number,
                    logprobs=logprobs_to_bytes(sample_logprobs),
                )
            )
    return rows
