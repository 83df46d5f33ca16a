"""REINFORCE (Williams 1992) with a baseline: the plain policy gradient, without any ratio.

    loss = − Σ_t c_t · Â_t · log π(o_t)

It treats the samples as on-policy, which is correct for staleness 0 and equal engines. Otherwise `trainer.anchor = "proximal"`
weighs every token with the ratio of the trainer's policy at the start of the batch to the behavior policy (correction.py).

Example, c = 1/3: logp (−1, −2, −0.5), Â (1, 1, −2) → loss = −(−1 − 2 + 1) / 3 = 2/3, gradient by logp (−1/3, −1/3, 2/3).
"""

from dataclasses import dataclass

import torch

from trainer.loss.base import LossValue, Tokens


@dataclass(frozen=True, slots=True)
class Reinforce:
    """Has no settings."""

    def __call__(self, tokens: Tokens) -> LossValue:
        """The loss; nothing is clipped."""
        loss = -(tokens.coefficient * tokens.advantage * tokens.logp).sum()
        return LossValue(loss, torch.zeros_like(tokens.logp, dtype=torch.bool))
