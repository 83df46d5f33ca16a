"""GSPO (Zheng et al. 2025): one ratio per sample, the geometric mean of its tokens' ratios.

    s_i = exp( 1/|o_i| Σ_t log r_{i,t} ),    loss = − Σ_i Σ_t c_t · min(s_{i,t} · Â_t, clip(s_{i,t}, ratio_min, ratio_max) · Â_t)

s_{i,t} = sg(s_i) · π(o_t) / sg(π(o_t)) is the paper's GSPO-token: with one advantage per sample its value and gradient are GSPO's, and
a sample with different advantages per token is also supported. |o_i| counts tokens of train weight > 0. The bounds are the
paper's, far narrower than token bounds; 1/|o_i| per sample is aggregation `sample`.

Example, bounds 0.8 and 1.2: a sample of two tokens with ratios (1, 1.21) → s = 1.1, Â = 1, and one of one token with ratio 0.5, Â = −2;
aggregation `sample` gives c = (1/4, 1/4, 1/2) → loss = −(1.1/4 + 1.1/4 − 1.6/2) = 0.25, gradient by logp (−0.275, −0.275, 0).
"""

from dataclasses import dataclass

import torch

from trainer.loss.base import LossValue, Tokens, check_bounds
from trainer.loss.surrogate import clipped_surrogate


@dataclass(frozen=True, slots=True)
class Gspo:
    """Bounds are absolute ratios of whole samples."""

    ratio_min: float = 0.9997
    ratio_max: float = 1.0004

    def __post_init__(self) -> None:
        check_bounds(self.ratio_min, self.ratio_max)

    def __call__(self, tokens: Tokens) -> LossValue:
        """The loss, and the tokens whose gradient was cut: all of a sample's with equal advantages."""
        log_ratio = tokens.logp.detach() - tokens.anchor
        samples = int(tokens.sample.max()) + 1 if len(tokens.sample) else 0
        total = log_ratio.new_zeros(samples).index_add_(0, tokens.sample, log_ratio)
        count = torch.bincount(tokens.sample, minlength=samples).clamp(min=1)
        sample_mean = (total / count)[tokens.sample]
        return clipped_surrogate(
            tokens, sample_mean + tokens.logp - tokens.logp.detach(), self.ratio_min, self.ratio_max
        )
