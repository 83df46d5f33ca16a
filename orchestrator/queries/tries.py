"""Uncertainty of results that hold several tries of one task: tries of one group tend to be alike, so they are worth fewer than they count."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter


@dataclass(frozen=True, slots=True, kw_only=True)
class Tallies:
    """Sums over groups with s successes in n tries."""

    groups: int
    n: int
    successes: int
    squares: int  # of s²
    products: int  # of s·n
    sizes: int  # of n²

    def effective(self) -> float:
        """How many independent tries tell as much about the share: n divided by the design effect, which is the variance of the share over groups
        by that of independent tries (Kish 1965). Half a success of a group of the mean size, whose tries agree, is added to both: few groups, or
        shares next to 0 and 1, tell little about how alike tries are. At least what groups whose tries all agree are worth, at most n. The tries of
        one group alone are independent: the share is that of its task."""
        if self.groups == 1:
            return float(self.n)
        p, mean_size = self.successes / self.n, self.sizes / self.n
        over_groups = self.squares - 2 * p * self.products + p * p * self.sizes
        effect = (over_groups + mean_size**2 / 2) / (self.n * p * (1 - p) + mean_size / 2)
        return min(float(self.n), max(self.n / mean_size, self.n / effect))


def spread(values: Sequence[tuple[int, float]], mean: float, *, unbiased: bool = False) -> float:
    """The sum of squared deviations from the mean, of (group, value): of each group's sum or, where that is more, of each value. `unbiased`: times
    n / (n - 1) for the n groups or values."""
    deviations = sorted((group, value - mean) for group, value in values)
    sums = [
        sum(deviation for _, deviation in members) for _, members in groupby(deviations, key=itemgetter(0))
    ]
    return max(
        sum(each**2 for each in found) * (len(found) / (len(found) - 1) if unbiased else 1.0)
        for found in (sums, [deviation for _, deviation in deviations])
    )
