"""The closed set of reasons for which a train step is skipped. Loads no torch."""

from enum import StrEnum


class SkipReason(StrEnum):
    """Why a train step was skipped: parameters and optimizer state stayed as they were."""

    NO_ACTION_TOKENS = "no_action_tokens"
    ALL_TOKENS_MASKED = "all_tokens_masked"  # by trainer.mask
    LOSS_NOT_FINITE = "loss_not_finite"
    GRADIENT_NOT_FINITE = "gradient_not_finite"
    GRADIENT_SPIKE = "gradient_spike"


BAD_BATCH = frozenset({SkipReason.LOSS_NOT_FINITE, SkipReason.GRADIENT_NOT_FINITE})
"""The reasons that make a batch bad."""
