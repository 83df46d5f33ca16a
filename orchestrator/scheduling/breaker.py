"""The circuit breaker of admission: while the platform fails most attempts, new groups would only waste theirs.

It counts the attempts that ended in the last `window_s` seconds, so it closes by itself: running and retried attempts show whether
the platform has recovered, and if nothing runs, the window empties. Nothing is lost in the meantime: accepted groups wait.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """`rate`: the share of infrastructure failures at which admission halts, once `attempts` attempts have ended within `window_s` seconds."""

    rate: float
    attempts: int
    window_s: float


def halts(ended: int, failed: int, settings: BreakerSettings) -> bool:
    """Whether dispatch must halt now. `failed` of the `ended` attempts were infrastructure failures.

    >>> settings = BreakerSettings(rate=0.5, attempts=50, window_s=60.0)
    >>> halts(60, 30, settings), halts(60, 29, settings), halts(49, 49, settings)
    (True, False, False)
    """
    return ended >= settings.attempts and failed >= settings.rate * ended
