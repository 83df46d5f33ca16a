"""A slope with its noise, of a series that has outliers, steps and neighbours that resemble each other.

The series is cut into blocks of equal numbers of readings; the median of each block is one point, so a reading taken during a collection or a spike
counts for nothing. The slope is Theil's and Sen's: the median of the slopes of all pairs of points. Its noise is the standard error of a line
through those points, from the residuals, times sqrt((1 + r) / (1 - r)), where r is the correlation of neighbouring residuals: one step,
or a slow wave, does not count as a trend, however small its residuals are (the usual correction of the number of independent points).

Source: P. K. Sen, Estimates of the Regression Coefficient Based on Kendall's Tau, JASA 63 (1968).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean, median

BLOCKS = 16
MIN_BLOCKS = 6
MAX_ALIKE = 0.9  # of r, which sixteen points do not know better


@dataclass(frozen=True, slots=True)
class Trend:
    """`slope` per unit of x, and its standard error."""

    slope: float
    noise: float

    @property
    def surely(self) -> float:
        """The lower bound of the slope, at two standard errors."""
        return self.slope - 2 * self.noise

    def times(self, factor: float) -> "Trend":
        return Trend(self.slope * factor, self.noise * abs(factor))


def of_level(x: Sequence[float], y: Sequence[float]) -> Trend | None:
    """The trend of a level (bytes, descriptors) over x, which does not fall. None for too few readings, or if x stands still.

    >>> of_level(range(32), [2.0 * n for n in range(32)])
    Trend(slope=2.0, noise=0.0)
    """
    blocks = _blocks(len(x))
    return _line([(median(x[a:b]), median(y[a:b])) for a, b in blocks])


def of_rate(x: Sequence[float], spent: Sequence[float]) -> tuple[float, Trend] | None:
    """(x per unit of `spent`, its trend over x as a share of that) where both only grow: rollouts and CPU seconds. None as in `of_level`, or if
    nothing was spent in some block.

    >>> of_rate(range(33), [0.5 * n for n in range(33)])
    (2.0, Trend(slope=0.0, noise=0.0))
    """
    points = []
    for a, b in _blocks(len(x) - 1):  # the ends of each block are the beginnings of the next
        if spent[b] <= spent[a]:
            return None
        points.append(((x[a] + x[b]) / 2, (x[b] - x[a]) / (spent[b] - spent[a])))
    if (trend := _line(points)) is None:
        return None
    usual = median(rate for _, rate in points)
    return (usual, trend.times(1 / usual)) if usual else None


def _blocks(count: int) -> list[tuple[int, int]]:
    number = min(BLOCKS, count)
    edges = [round(at * count / number) for at in range(number + 1)] if number > 0 else []
    return list(pairwise(edges))


def _line(points: Sequence[tuple[float, float]]) -> Trend | None:
    slopes = [(d - b) / (c - a) for (a, b), (c, d) in combinations(points, 2) if c > a]
    spread = sum((x - fmean(x for x, _ in points)) ** 2 for x, _ in points) if points else 0.0
    if len(points) < MIN_BLOCKS or not slopes or not spread:
        return None
    slope = median(slopes)
    at = median(y - slope * x for x, y in points)
    rests = [y - slope * x - at for x, y in points]
    square = sum(rest * rest for rest in rests)
    alike = sum(a * b for a, b in pairwise(rests)) / square if square else 0.0
    alike = min(MAX_ALIKE, max(0.0, alike))
    error = math.sqrt(square / (len(points) - 2) / spread)
    return Trend(slope, error * math.sqrt((1 + alike) / (1 - alike)))
