"""CISPO (MiniMax-M1): REINFORCE with a clipped importance ratio as a constant weight.

    loss = − Σ_t c_t · sg(clip(r_t, ratio_min, ratio_max)) · Â_t · log π(o_t),    r_t = π(o_t) / π_behavior(o_t)

sg is stop-gradient: the gradient flows through log π alone, so a clipped token still learns, unlike under PPO's min.
There is no KL term. The anchor is the *behavior* policy: staleness and the mismatch between trainer and rollout server
are in one ratio. With an anchor recomputed by the trainer and one update per batch the ratio would be 1 and the clip idle.

Example, bounds 0 and 5, c = 1/3: logp (−1, −2, −0.5), behavior (−1, −4, −0.5), Â (1, 1, −2) → ratios (1, e² = 7.39, 1),
clipped (1, 5, 1) → loss = −(1·1·(−1) + 5·1·(−2) + 1·(−2)·(−0.5)) / 3 = 10/3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CispoSettings:
    """Bounds are absolute ratios. negative_scale multiplies negative advantages (1 = plain CISPO)."""

    ratio_min: float = 0.0
    ratio_max: float = 5.0
    negative_scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.ratio_min < self.ratio_max:
            raise ValueError(
                f"ratio bounds must satisfy 0 ≤ min < max, got {self.ratio_min} and {self.ratio_max}"
            )
        if self.negative_scale < 0:
            raise ValueError(f"negative_scale must be ≥ 0, got {self.negative_scale}")


def cispo(
    logp: Tensor, behavior: Tensor, advantage: Tensor, coefficient: Tensor, settings: CispoSettings
) -> tuple[Tensor, Tensor]:
    """(loss, clipped ratio): a scalar with gradient through `logp`, and the detached weights [E].

    All inputs are [E], one row per loss edge; `coefficient` is train weight ÷ denominator (see aggregation.py).
    """
    ratio = torch.exp(logp.detach() - behavior).clamp(settings.ratio_min, settings.ratio_max)
    scaled = torch.where(advantage < 0, advantage * settings.negative_scale, advantage)
    return -(coefficient * ratio * scaled * logp).sum(), ratio
