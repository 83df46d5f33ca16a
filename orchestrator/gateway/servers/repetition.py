"""The repetition stop: a completion that has been almost certain of every token for a long run only repeats itself, and is ended.

MiniMax-M1's rule: 3,000 consecutive tokens of probability > 0.99. Rollout servers do not implement such a rule and do not stream. The gateway
therefore requests a long completion in segments that end where the rule could first apply; each segment continues from the tokens sampled so
far, which the server still has in its prefix cache. A completion whose limit is not above the rule's run is one segment, as without the rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIN_SEGMENT = 4  # a segment is at least run ÷ this: otherwise a run that breaks near its end would cost a request per token


@dataclass(frozen=True, slots=True)
class Repetition:
    """`tokens` consecutive tokens of a probability above `probability` end a completion; 0 tokens: the rule is off."""

    tokens: int = 0
    probability: float = 0.99


class RepetitionDetector:
    """One completion under the rule.

    >>> detector = RepetitionDetector(Repetition(tokens=4, probability=0.9))
    >>> detector.segment(left=10), detector.feed([-0.01, -2.0, -0.01])
    (4, None)
    >>> detector.segment(left=7), detector.feed([-0.01, -0.01, -0.01, -0.01])  # the fourth in a row is the sixth token of all
    (3, 6)
    """

    def __init__(self, rule: Repetition) -> None:
        self._rule = rule
        self._above = math.log(rule.probability)
        self._run = self._fed = 0

    def segment(self, left: int) -> int:
        """Tokens to request now, of the `left` that may still come; `left` without a rule."""
        tokens = self._rule.tokens
        return min(left, max(tokens - self._run, -(-tokens // MIN_SEGMENT))) if tokens else left

    def feed(self, logprobs: Sequence[float]) -> int | None:
        """Take in the next tokens. Return the length at which the completion ends once the rule applies, else None."""
        if not self._rule.tokens:
            return None
        for logprob in logprobs:
            self._fed += 1
            self._run = self._run + 1 if logprob > self._above else 0
            if self._run == self._rule.tokens:
                return self._fed
        return None
