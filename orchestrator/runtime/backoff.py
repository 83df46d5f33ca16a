"""The wait before a retry: one policy for all retries."""

import random
from collections.abc import Iterator
from typing import Final

MAX_DELAY_S: Final = 300.0


def doubled(first_s: float, times: int) -> float:
    """Seconds to wait before work that others share is tried again: `first_s`, doubled `times` times up to five minutes, or `first_s` if that is
    longer.

    >>> doubled(1.0, 0), doubled(1.0, 3), doubled(1.0, 5000), doubled(400.0, 2), doubled(0.0, 9)
    (1.0, 8.0, 300.0, 400.0, 0.0)
    """
    # 2**30 is more than the limit for every wait that a clock can tell; larger powers do not fit a float.
    return min(first_s * 2.0 ** min(max(0, times), 30), max(first_s, MAX_DELAY_S))


def backoff(first_s: float, longest_s: float) -> Iterator[float]:
    """Seconds to wait before each next try, without end: `first_s`, doubled each time up to `longest_s`, each times a random factor.

    The factor is uniform between 0.5 and 1.5 and drawn for each wait. So the mean wait is the doubled one, the longest
    is 1.5 times `longest_s`, and clients that lost the same server at the same moment do not come back together. After a success, start
    again with a new iterator.

    >>> waits = backoff(0.1, 2.0)
    >>> 0.05 <= next(waits) <= 0.15, 0.1 <= next(waits) <= 0.3
    (True, True)
    """
    wait_s = min(first_s, longest_s)
    while True:
        yield wait_s * random.uniform(0.5, 1.5)
        wait_s = min(2 * wait_s, longest_s)
