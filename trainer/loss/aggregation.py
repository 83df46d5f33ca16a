"""The denominator of a train step, fixed before packing and merging.

    token   1 / Σ_i |o_i|                     every action token of the train step counts the same
    prompt  1 / (P · Σ_{i in its group} |o_i|)  every group (prompt) counts the same

|o_i| counts action tokens of train weight > 0 over all micro-batches of the train step. It knows samples only, so
merging, packing and the number of packs cannot change the loss.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from trainer.samples import Sample

Aggregation = Literal["token", "prompt"]


def normalisers(samples: Sequence[Sample], aggregation: Aggregation) -> list[float]:
    """One factor per sample, for each of its action tokens; 0 where the sample has no token of weight > 0."""
    if aggregation not in ("token", "prompt"):
        raise ValueError(f"unknown aggregation {aggregation!r}; known are token and prompt")
    counts = Counter[str]()
    for sample in samples:
        counts[sample.group if aggregation == "prompt" else ""] += sample.trained_tokens
    prompts = sum(1 for count in counts.values() if count) if aggregation == "prompt" else 1
    return [
        1.0 / (prompts * counts[sample.group if aggregation == "prompt" else ""])
        if sample.trained_tokens
        else 0.0
        for sample in samples
    ]
