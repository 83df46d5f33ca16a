"""DAPO (Yu et al. 2025): GRPO's surrogate with a higher upper bound, so that unlikely tokens can grow.

    loss = − Σ_t c_t · min(r_t · Â_t, clip(r_t, ratio_min, ratio_max) · Â_t),    ratio_min = 1 − 0.2, ratio_max = 1 + 0.28

The rest of DAPO is configured elsewhere: every token counts the same (aggregation `token`, as in its code), groups without signal are dropped
(`reward.zero_signal`), no KL term. Its overlong reward shaping is not part of a loss and is not implemented.

Example, c = 1/3, ratios (1, 1.25, 0.5), Â (1, 1, −2): 1.25 stays, unlike under GRPO; the third is clipped to 0.8
→ loss = −(1 + 1.25 − 1.6) / 3 = −0.65/3, gradient by logp (−1/3, −1.25/3, 0).
"""

from dataclasses import dataclass

from trainer.loss.base import LossValue, Tokens, check_bounds
from trainer.loss.surrogate import clipped_surrogate


@dataclass(frozen=True, slots=True)
class Dapo:
    """Bounds are absolute ratios: 1 − ε_low and 1 + ε_high."""

    ratio_min: float = 0.8
    ratio_max: float = 1.28

    def __post_init__(self) -> None:
        check_bounds(self.ratio_min, self.ratio_max)

    def __call__(self, tokens: Tokens) -> LossValue:
        """The loss, and the tokens whose gradient was cut."""
        return clipped_surrogate(tokens, tokens.logp - tokens.anchor, self.ratio_min, self.ratio_max)
