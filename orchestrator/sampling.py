"""How completions are sampled, and what of it can be trained on."""

from typing import Annotated

from pydantic import Field

from orchestrator.course import Positive, Section

GREEDY_BELOW = 1e-6  # a temperature of which rollout servers make 0


class SamplingSection(Section):
    """Sampling parameters while training; requests of harnesses do not override them, except max_tokens downwards and stops."""

    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: int = -1
    max_new_tokens: Positive = 256
    # A completion that repeats itself ends: after so many consecutive tokens above this probability. 0: none does.
    repetition_tokens: Annotated[int, Field(ge=0)] = 3000
    repetition_probability: Annotated[float, Field(gt=0, lt=1)] = 0.99

    @property
    def untrainable(self) -> str | None:
        """Why nothing sampled so could be trained on, as a sentence; None: it can. Log-probabilities are of the distribution after temperature,
        before top_k and top_p."""
        wrong = "tokens would come from a part of the distribution that has their log-probabilities, so importance ratios would be wrong"
        if self.temperature < GREEDY_BELOW:
            key, why, to = "temperature", "greedy samples have no log-probabilities to train on", "above 0"
        elif self.top_p < 1:
            key, why, to = "top_p", wrong, "to 1"
        elif self.top_k != -1:
            key, why, to = "top_k", wrong, "to -1"
        else:
            return None
        return f"sampling.{key} is {getattr(self, key)}: {why}; set it {to} (evaluations may have one of their own)"
