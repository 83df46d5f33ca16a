"""The circuit breaker of admission: while the platform fails most attempts, new groups would only burn theirs.

Counted over the attempts that ended in the last `window_s` seconds, so it closes by itself: what still runs or is tried again shows whether
the platform has recovered, and with nothing running the window empties. Nothing is lost meanwhile: accepted groups wait.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """`rate`: share of infrastructure failures from which on admission halts, once `attempts` have ended within `window_s` seconds."""

    rate: float
    attempts: int
    window_s: float


def halts(ended: int, failed: int, settings: BreakerSettings) -> bool:
    """Whether nothing may be dispatched now. `failed` of the `ended` attempts were infrastructure failures.

    >>> settings = BreakerSettings(rate=0.5, attempts=50, window_s=60.0)
    >>> halts(60, 30, settings), halts(60, 29, settings), halts(49, 49, settings)
    (True, False, False)
    """
    return ended >= settings.attempts and failed >= settings.rate * ended
