"""The denominator of a train step, fixed before packing and merging.

    prompt  1 / (P · Σ_{i in its group} |o_i|)  every group (prompt) counts the same: CISPO as published
    token   1 / Σ_i |o_i|                       every action token of the train step counts the same
    sample  1 / (S · |o_i|)                     every sample (completion) counts the same

|o_i| counts action tokens of train weight > 0, over all micro-batches of the train step; P and S count groups and samples that have
any. The denominator depends only on samples, so merging, packing and the number of packs cannot change the loss.

Example: group a with samples of 3 and 1 tokens, group b with one of 2. By token each counts 1/6; by prompt 1/8 in a and 1/4 in b;
by sample 1/9, 1/3 and 1/6.
"""

from collections import Counter
from collections.abc import Sequence

from orchestrator.contracts.choices import Aggregation
from trainer.samples import Sample


def normalisers(samples: Sequence[Sample], aggregation: Aggregation) -> list[float]:
    """One factor per sample, for each of its action tokens; 0 where the sample has no token of weight > 0."""
    if aggregation not in list(Aggregation):
        raise ValueError(f"unknown aggregation {aggregation!r}; known: {', '.join(Aggregation)}")
    if aggregation == Aggregation.SAMPLE:
        units = [str(i) for i in range(len(samples))]
    else:
        units = [sample.group if aggregation == Aggregation.PROMPT else "" for sample in samples]
    counts = Counter[str]()
    for unit, sample in zip(units, samples, strict=True):
        counts[unit] += sample.trained_tokens
    share = sum(1 for count in counts.values() if count)  # units with at least one such token
    return [
        1.0 / (share * counts[unit]) if sample.trained_tokens else 0.0
        for unit, sample in zip(units, samples, strict=True)
    ]
