"""GRPO (DeepSeekMath): PPO's clipped surrogate with the group's baseline in place of a critic.

    loss = − Σ_t c_t · min(r_t · Â_t, clip(r_t, ratio_min, ratio_max) · Â_t),    r_t = π(o_t) / π_anchor(o_t)

The paper's ε = 0.2 on both sides, 1/|o_i| per answer (aggregation `sample`) and Â divided by the group's standard deviation
(`reward.advantage_std`). Its KL term against a reference policy is left out: no reference policy is kept.

Example, bounds 0.8 and 1.2, c = 1/3, ratios (1, 1.25, 0.5), Â (1, 1, −2): the second is clipped to 1.2, the third to 0.8, since
min(−1, −1.6) = −1.6 → loss = −(1 + 1.2 − 1.6) / 3 = −0.2, gradient by logp (−1/3, 0, 0).
"""

from dataclasses import dataclass

from trainer.loss.base import LossValue, Tokens, check_bounds
from trainer.loss.surrogate import clipped_surrogate


@dataclass(frozen=True, slots=True)
class Grpo:
    """Bounds are absolute ratios: 1 − ε and 1 + ε."""

    ratio_min: float = 0.8
    ratio_max: float = 1.2

    def __post_init__(self) -> None:
        check_bounds(self.ratio_min, self.ratio_max)

    def __call__(self, tokens: Tokens) -> LossValue:
        """The loss, and the tokens whose gradient was cut."""
        return clipped_surrogate(tokens, tokens.logp - tokens.anchor, self.ratio_min, self.ratio_max)
