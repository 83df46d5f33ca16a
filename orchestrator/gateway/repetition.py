"""The repetition stop: a completion that has been all but certain of every token for long only repeats itself, and is ended.

MiniMax-M1's rule: 3,000 consecutive tokens of probability > 0.99. Rollout servers know no such rule and do not stream, so a long
completion is asked for in segments that end where the rule could first hold; each goes on from what was sampled before, which the server
still has in its prefix cache. A completion that may not be longer than the rule's run is one segment, as without the rule.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SEGMENT = (
    4  # a segment is at least the run ÷ this: else a run broken near its end would cost a request per token
)


@dataclass(frozen=True, slots=True)
class Repetition:
    """`tokens` consecutive tokens of a probability above `probability` end a completion; 0 tokens: none do."""

    tokens: int = 0
    probability: float = 0.99


class Watch:
    """One completion under the rule.

    >>> watch = Watch(Repetition(tokens=4, probability=0.9))
    >>> watch.segment(left=10), watch.hear([-0.01, -2.0, -0.01])
    (4, None)
    >>> watch.segment(left=7), watch.hear([-0.01, -0.01, -0.01, -0.01])  # the fourth in a row is the sixth token of all
    (3, 6)
    """

    def __init__(self, rule: Repetition) -> None:
        self._rule = rule
        self._above = math.log(rule.probability)
        self._run = self._heard = 0

    def segment(self, left: int) -> int:
        """How many tokens to ask for now, of `left` that may still come; `left` without a rule."""
        tokens = self._rule.tokens
        return min(left, max(tokens - self._run, -(-tokens // LEAST_SEGMENT))) if tokens else left

    def hear(self, logprobs: Sequence[float]) -> int | None:
        """Take the next tokens in. The length at which the completion ends, once the rule holds; else None."""
        if not self._rule.tokens:
            return None
        for logprob in logprobs:
            self._heard += 1
            self._run = self._run + 1 if logprob > self._above else 0
            if self._run == self._rule.tokens:
                return self._heard
        return None
