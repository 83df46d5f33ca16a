"""CISPO (MiniMax-M1): REINFORCE with a clipped importance ratio as a constant weight.

    loss = − Σ_t c_t · sg(clip(r_t, ratio_min, ratio_max)) · Â_t · log π(o_t),    r_t = π(o_t) / π_anchor(o_t)

sg is stop-gradient: the gradient flows through log π alone, so a clipped token still learns, unlike under PPO's min.
The loss has no KL term. The published c_t is 1 / (P · Σ|o| of its group): aggregation `prompt`. The anchor is the *behavior* policy: one ratio
contains the staleness and the mismatch between trainer and rollout server. With an anchor recomputed by the trainer and one update per batch,
the ratio would be 1 and the clip without effect.

Example, bounds 0 and 5, c = 1/3: logp (−1, −2, −0.5), anchor (−1, −4, −0.5), Â (1, 1, −2) → ratios (1, e² = 7.39, 1),
clipped (1, 5, 1) → loss = −(1·1·(−1) + 5·1·(−2) + 1·(−2)·(−0.5)) / 3 = 10/3, gradient by logp (−1/3, −5/3, 2/3).
"""

from dataclasses import dataclass

import torch

from trainer.loss.base import LossValue, Tokens, check_bounds


@dataclass(frozen=True, slots=True)
class Cispo:
    """Bounds are absolute ratios."""

    ratio_min: float = 0.0
    ratio_max: float = 5.0

    def __post_init__(self) -> None:
        check_bounds(self.ratio_min, self.ratio_max)

    def __call__(self, tokens: Tokens) -> LossValue:
        """The loss, and the tokens whose weight was clipped (they still learn)."""
        ratio = torch.exp(tokens.logp.detach() - tokens.anchor)
        weight = ratio.clamp(self.ratio_min, self.ratio_max)
        loss = -(tokens.coefficient * weight * tokens.advantage * tokens.logp).sum()
        return LossValue(loss, (ratio < self.ratio_min) | (ratio > self.ratio_max))
