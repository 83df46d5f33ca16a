"""PPO's clipped surrogate (Schulman et al. 2017), which GRPO, DAPO and GSPO share; they differ in ratio and bounds.

    term_t = min(r_t · Â_t, clip(r_t, low, high) · Â_t)

The gradient flows through r_t. Where the min takes the clipped side it is 0, so that token learns nothing in this train step.
"""

import torch
from torch import Tensor

from trainer.loss.base import LOG_RATIO_LIMIT, LossValue, Tokens


def clipped_surrogate(tokens: Tokens, log_ratio: Tensor, low: float, high: float) -> LossValue:
    """− Σ_t c_t · term_t for log r_t [E] with its gradient, and the tokens whose gradient was cut."""
    ratio = torch.exp(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    free = ratio * tokens.advantage
    bound = ratio.clamp(low, high) * tokens.advantage
    return LossValue(-(tokens.coefficient * torch.minimum(free, bound)).sum(), bound.detach() < free.detach())
