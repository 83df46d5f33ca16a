"""95 % intervals of a success rate."""

import math

Z = 1.959963984540054  # the 97.5 % point of the normal distribution


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's score interval: (low, high), fractions.

    >>> [round(x, 3) for x in wilson(52, 200)]
    [0.204, 0.325]
    """
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)
