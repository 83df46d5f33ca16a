"""The wait before a retry: one policy for all retries."""

import random
from collections.abc import Iterator


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
