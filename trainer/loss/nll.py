"""Negative log-likelihood of the recorded actions, for supervised training on trajectories.

    loss = − Σ_t c_t · log π(o_t)

The coefficients c carry the token weights; advantages and behavior logprobs play no part.
"""

from torch import Tensor


def nll(logp: Tensor, coefficient: Tensor) -> Tensor:
    """The scalar loss of loss edges [E]."""
    return -(coefficient * logp).sum()
