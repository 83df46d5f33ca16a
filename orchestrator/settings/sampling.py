"""How completions are sampled, and which of them can be trained on."""

import math
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field, field_validator

from orchestrator.contracts.quote import quoted
from orchestrator.settings.curriculum import Count, Positive
from orchestrator.settings.section import Section

HOTTEST: Final = 100.0
"""Higher temperatures divide logits to nothing: every token is equally likely."""
GREEDY_BELOW = 1e-6  # rollout servers round a lower temperature to 0


class SamplingSection(Section):
    """Sampling parameters while training; requests of harnesses do not override them, except max_tokens downwards and stops."""

    temperature: Annotated[float, Field(ge=0, le=HOTTEST), AfterValidator(lambda given: given + 0.0)] = 1.0
    """The temperature of training samples; it must be above 0 for anything to train."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The probability mass that is sampled from; a run that trains needs 1."""
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1
    """The most likely tokens that are sampled from; -1 means all, which a run that trains needs."""
    max_new_tokens: Positive = 32_768
    """The most tokens of one completion; what is left of the context bounds it as well."""
    repetition_tokens: Count = 3000
    """A completion ends after so many consecutive tokens above `repetition_probability`; 0 switches it off."""
    repetition_probability: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """The probability above which a token counts towards `repetition_tokens`."""

    @field_validator("top_k")
    @classmethod
    def _some(cls, top_k: int) -> int:
        if top_k == 0:
            raise ValueError("must be -1, for all tokens, or at least 1")
        return top_k

    @property
    def untrainable(self) -> str | None:
        """Why nothing sampled so could be trained on, as a sentence; None: it can. Log-probabilities are of the distribution after temperature,
        before top_k and top_p."""
        biased = "tokens would come from a part of the distribution that has their log-probabilities, so importance ratios would be wrong"
        if self.temperature < GREEDY_BELOW:
            key, reason, to = "temperature", "greedy samples have no log-probabilities to train on", "above 0"
        elif self.top_p < 1:
            key, reason, to = "top_p", biased, "to 1"
        elif self.top_k != -1:
            key, reason, to = "top_k", biased, "to -1"
        else:
            return None
        return f"sampling.{key} is {getattr(self, key)}: {reason}; set it {to} (evaluations may have one of their own)"


MAX_INT: Final = 2**31 - 1
EXACT: Final = 2**53 - 1  # whole numbers that JSON readers keep exactly
_RANGES: Final[Mapping[str, tuple[str, float, float, bool]]] = {
    "temperature": (f"a number from 0 to {HOTTEST:g}", 0.0, HOTTEST, False),
    "top_p": ("a number above 0, at most 1", math.ulp(0.0), 1.0, False),
    "top_k": ("-1, for all tokens, or a whole number from 1 on", -1, MAX_INT, True),
    "max_new_tokens": ("a whole number from 1 on", 1, MAX_INT, True),
    "seed": ("a whole number from 0 on", 0, 2**63 - 1, True),
}
SAMPLING_KEYS: Final = frozenset(_RANGES)
"""The values that a session may override."""


def checked(given: Mapping[str, object], *, most_seed: int = EXACT) -> dict[str, float]:
    """Sampling parameters of an evaluation or a session, whole numbers as such. ValueError, one sentence, names the key that is not known, or
    whose value cannot be."""
    if unknown := sorted(set(given) - SAMPLING_KEYS):
        raise ValueError(
            f"unknown sampling key {quoted(unknown[0])}; known: {', '.join(sorted(SAMPLING_KEYS))}"
        )
    found: dict[str, float] = {}
    for name, value in given.items():
        rule, minimum, maximum, integral = _RANGES[name]
        maximum = min(maximum, most_seed) if name == "seed" else maximum
        fits = isinstance(value, int | float) and not isinstance(value, bool) and minimum <= value <= maximum
        if (
            not fits
            or not isinstance(value, int | float)
            or value in (math.inf, 0 if name == "top_k" else math.inf)
        ):
            raise ValueError(f"sampling.{name} must be {rule}, got {quoted(value)}")
        if integral and value != int(value):
            raise ValueError(f"sampling.{name} must be {rule}, got {quoted(value)}")
        found[name] = int(value) if integral else float(value) + 0.0  # Postgres keeps no -0.0
    return found
