"""The port of every loss: the input and the output of a formula.

    Tokens ──a loss──▶ LossValue        loss = − Σ_t c_t · (the formula's term of token t)

A formula uses neither models nor packs. If it couples the tokens of a sample (GSPO), it relies on getting whole samples, which
trainer/tree/execute.py guarantees. Bounds are absolute ratios everywhere: PPO's 1 − ε and 1 + ε' are
ratio_min = 0.8 and ratio_max = 1.2 here.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios that gradients flow through are clamped to ± this: e²⁰ · 0 is 0 in a backward pass, ∞ · 0 is not a number."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tokens:
    """The action tokens of train weight > 0 of some whole samples, [E] each, in order of sample and token. Only `logp` carries a gradient."""

    logp: Tensor  # log π(o_t), nats
    anchor: Tensor  # log π_anchor(o_t): of the behavior policy, or of the trainer before the batch
    advantage: Tensor  # Â_t, negative ones already scaled
    coefficient: Tensor  # c_t: train weight ÷ denominator, times the weight of correction.py
    sample: Tensor  # int64[E], index of the token's sample among them


@dataclass(frozen=True, slots=True, eq=False)
class LossValue:
    """`clipped` is bool[E]: the tokens whose term the bounds changed."""

    loss: Tensor  # scalar with gradient through Tokens.logp
    clipped: Tensor


class Loss(Protocol):
    """One formula with its settings; frozen, a function of the tokens alone."""

    def __call__(self, tokens: Tokens) -> LossValue:
        """The loss of these samples; losses of samples add up."""
        ...


def check_bounds(low: float, high: float) -> None:
    """Raise ValueError unless 0 ≤ low ≤ 1 ≤ high and low < high."""
    if not (0 <= low <= 1 <= high and low < high):
        raise ValueError(
            f"ratio bounds must satisfy 0 ≤ ratio_min ≤ 1 ≤ ratio_max and differ, got {low} and {high}: they are absolute ratios, "
            "so an offset of 0.2 above 1 is written 1.2"
        )
