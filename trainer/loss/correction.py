"""The policy that anchors the ratio, and the treatment of tokens whose probabilities differ too much between trainer and rollout server.

    k_t = π_trainer(o_t) / π_behavior(o_t)      staleness and the mismatch of the two engines in one number

    anchor     ratio of the loss      π_trainer in k             weight w_t: none          icepop               mis
    behavior   π / π_behavior         π, in this train step      1                         1[in]                1[in]
    proximal   π / π_proximal         π before the batch         min(k_t, tis_max)         k_t · 1[in]          ρ_i · 1[in]

`in` is icepop_min ≤ k_t ≤ icepop_max per token for IcePop (Ling Team 2025), and ρ_i = Π_t k_t ≤ mis_max per sample for MIS (masked
importance sampling). With the behavior anchor the loss's own ratio already is k, so a mask only selects tokens. `proximal` is the decoupled
objective of AReaL with truncated importance sampling (TIS): the trainer computes its logprobs once, before the first train step of a
batch, through the same trees. The first train step then has ratio 1 throughout: with one train step per batch, bounds have no effect.

No gradient flows through w. The denominator of aggregation.py is fixed earlier and counts masked tokens too.

Example, proximal, tis_max 2: behavior (−1, −3, −1), proximal (−1, −2, −2) → k = (1, e = 2.72, 0.37), w = (1, 2, 0.37).
icepop 0.5–5: w = (1, 2.72, 0). mis, one sample: ρ = e^(0+1−1) = 1 ≤ 2, so w = (1, 1, 1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.contracts.choices import Anchor, MismatchMask


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """Bounds are absolute ratios."""

    anchor: Anchor = Anchor.BEHAVIOR
    mask: MismatchMask = MismatchMask.NONE
    tis_max: float = 2.0
    icepop_min: float = 0.5
    icepop_max: float = 5.0
    mis_max: float = 2.0

    def __post_init__(self) -> None:
        if not self.tis_max > 0 or not self.mis_max > 0:
            raise ValueError(f"tis_max and mis_max must be > 0, got {self.tis_max} and {self.mis_max}")
        if not 0 <= self.icepop_min < self.icepop_max:
            raise ValueError(
                f"IcePop's bounds must satisfy 0 ≤ min < max, got {self.icepop_min} and {self.icepop_max}"
            )

    @property
    def idle(self) -> bool:
        """Whether every weight is 1."""
        return self.anchor == Anchor.BEHAVIOR and self.mask == MismatchMask.NONE


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """`weight` [E] ≥ 0, detached; `cut` bool[E]: the tokens that were truncated or masked."""

    weight: Tensor
    cut: Tensor


def correct(settings: CorrectionSettings, trainer: Tensor, behavior: Tensor, sample: Tensor) -> Correction:
    """Weights of tokens with these logprobs [E]. `trainer`: those of the proximal policy, or with the behavior anchor those of the current one.

    `sample` int64[E] is the index of each token's sample; samples are whole.
    """
    log_k = (trainer - behavior).detach()
    k = torch.exp(log_k)
    proximal = settings.anchor == Anchor.PROXIMAL
    if settings.mask == MismatchMask.NONE:
        cut = k > settings.tis_max if proximal else torch.zeros_like(k, dtype=torch.bool)
        return Correction(k.clamp(max=settings.tis_max) if proximal else torch.ones_like(k), cut)
    if settings.mask == MismatchMask.MIS:
        samples = int(sample.max()) + 1 if len(sample) else 0
        log_rho = log_k.new_zeros(samples).index_add_(0, sample, log_k)[sample]
        k = torch.exp(log_rho)
        cut = k > settings.mis_max
    else:
        cut = (k < settings.icepop_min) | (k > settings.icepop_max)
    weight = k if proximal else torch.ones_like(k)
    return Correction(torch.where(cut, torch.zeros_like(k), weight), cut)
