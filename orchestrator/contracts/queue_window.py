"""The window of the queue's policies, which the configuration, the pages and the checks show, and by which the policies take.

`fifo`, `windowed` and `greedy` are built in; others are entry points of penstock.policies, which get capacity and fraction like `windowed`.
"""

import math
from typing import Final

FIFO: Final = "fifo"
WINDOWED: Final = "windowed"
GREEDY: Final = "greedy"


def window_size(capacity: int, fraction: float) -> int:
    """W = max(1, ⌊f·N⌋), in queue positions.

    >>> window_size(8, 0.5), window_size(8, 0.3), window_size(2, 0.3)
    (4, 2, 1)
    >>> window_size(100, 0.29)  # 0.29 · 100 is 28.999999999999996 in binary: the product is rounded before the floor
    29
    """
    assert capacity >= 1 and fraction >= 0
    return max(1, math.floor(round(fraction * capacity, 9)))


def places(capacity: int, max_staleness: int, batch_groups: int) -> int:
    """The most groups in flight: N, or (S+1)·P where staleness admits fewer. A larger N then only widens the window.

    >>> places(24, 2, 8), places(64, 2, 8), places(16, 2, 8)
    (24, 24, 16)
    """
    return min(capacity, (max_staleness + 1) * batch_groups)


def window_of(policy: str, capacity: int, fraction: float) -> int:
    """W of a policy, in queue positions: 1 of `fifo`; N of `greedy`, which takes any position, also those further from the head.

    >>> window_of("fifo", 24, 0.3), window_of("windowed", 24, 0.3), window_of("greedy", 24, 0.3)
    (1, 7, 24)
    """
    if policy == FIFO:
        return 1
    return capacity if policy == GREEDY else window_size(capacity, fraction)


def staleness_bound(policy: str, window: int, max_staleness: int, batch_groups: int) -> int | None:
    """The most batches that are committed between a group's dispatch and its own: S + ⌈(W−1)/P⌉, since W−1 younger groups may pass it.
    None: without bound with `greedy`, unknown with a policy of one's own.

    >>> [staleness_bound(policy, 7, 2, 4) for policy in ("windowed", "greedy", "mine")], staleness_bound("fifo", 1, 2, 4)
    ([4, None, None], 2)
    """
    if policy not in (FIFO, WINDOWED):
        return None
    return max_staleness + math.ceil((window - 1) / batch_groups)
