"""Negative log-likelihood of the recorded actions, for supervised training on trajectories.

    loss = − Σ_t c_t · log π(o_t)

The coefficients c carry the token weights, and with a mask or `anchor = "proximal"` those of correction.py. Advantages play no part.

Example, c = 1/3: logp (−1, −2, −0.5) → loss = 3.5/3, gradient by logp −1/3 everywhere.
"""

from dataclasses import dataclass

import torch

from trainer.loss.base import LossValue, Tokens


@dataclass(frozen=True, slots=True)
class Sft:
    """Has no settings."""

    def __call__(self, tokens: Tokens) -> LossValue:
        """The loss; nothing is clipped."""
        loss = -(tokens.coefficient * tokens.logp).sum()
        return LossValue(loss, torch.zeros_like(tokens.logp, dtype=torch.bool))
