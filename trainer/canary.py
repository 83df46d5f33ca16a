"""The canary: logprobs of one fixed prompt under the trainer, published with the weights.

After a weight sync the owner of a rollout server requests the logprobs of the same ids (temperature 1, the input
logprobs of one request) and compares them. Equal files do not prove equal weights in memory; equal logprobs nearly do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from trainer.samples import Sample
from trainer.update import UpdateSettings, recompute_logprobs


@dataclass(frozen=True, slots=True)
class Canary:
    """logprobs[i] = log p(ids[i + 1] | ids[: i + 1]) at temperature 1; one fewer than ids."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def make_canary(model: nn.Module, ids: Sequence[int]) -> Canary:
    """Score `ids` (at least 2) with the trainer's own forward pass."""
    if len(ids) < 2:
        raise ValueError(f"a canary needs at least 2 token ids, got {len(ids)}")
    probe = Sample.of(
        ids[:1], ids[1:], behavior_logprobs=[0.0] * (len(ids) - 1), advantage=0.0, rollout="canary"
    )
    [logprobs] = recompute_logprobs(model, [probe], UpdateSettings())
    return Canary(tuple(int(i) for i in ids), tuple(float(value) for value in logprobs))
