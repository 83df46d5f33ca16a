"""Which rank trains which samples of a train step: balanced by what their trees cost, and never across a shared state where it can be helped.

    cost of a rank = T + pair_cost · P        T merged tokens, P visible (query, key) pairs of the tree of its samples

A token costs what the model's matrices do, a pair what attention does (`pair_cost`, in tokens). Groups are the units: nearly all sharing is
inside them. Where groups alone leave the busiest rank with more than `UNEVEN` times the mean, rollouts are tried as units, and taken if the
busiest rank then has less to do, though what a group's rollouts share is forwarded on several ranks. Longest unit first, each to
the rank with the least to do. The result depends on the samples alone, so every rank finds the same.
"""

from collections.abc import Callable, Hashable, Sequence

from torch import nn

from trainer.samples import Sample
from trainer.tree.plan import FlatTree

UNEVEN = 1.1


def shares(samples: Sequence[Sample], ranks: int, pair_cost: float) -> list[list[int]]:
    """The places in `samples` that each rank trains, ascending; every sample of train weight > 0 once. A rank's may be empty."""
    trained = [i for i, sample in enumerate(samples) if sample.trained_tokens]

    def cost(places: Sequence[int]) -> float:
        if not places:
            return 0.0
        plan = FlatTree([samples[i].tokens for i in places]).plan
        return plan.tokens + pair_cost * plan.pairs

    def busiest(split: Sequence[Sequence[int]]) -> tuple[float, float]:
        costs = [cost(places) for places in split]
        return max(costs), sum(costs) / len(costs)

    by_group = _split(samples, trained, ranks, cost, lambda sample: (sample.seq, sample.group))
    most, mean = busiest(by_group)
    if most <= UNEVEN * mean:
        return by_group
    by_rollout = _split(
        samples, trained, ranks, cost, lambda sample: (sample.seq, sample.group, sample.rollout)
    )
    return by_rollout if busiest(by_rollout)[0] < most else by_group


def _split(
    samples: Sequence[Sample],
    places: Sequence[int],
    ranks: int,
    cost: Callable[[Sequence[int]], float],
    unit_of: Callable[[Sample], Hashable],
) -> list[list[int]]:
    units: dict[Hashable, list[int]] = {}
    for place in places:
        units.setdefault(unit_of(samples[place]), []).append(place)
    split: list[list[int]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for price, unit in sorted(
        ((cost(unit), unit) for unit in units.values()), key=lambda one: (-one[0], one[1])
    ):
        rank = load.index(min(load))
        load[rank] += price
        split[rank] += unit
    return [sorted(one) for one in split]


def pair_cost(model: nn.Module) -> float:
    """What a visible pair costs, in tokens: 2 · L · d multiplications (scores, values) for a pair, N for a token of N parameters."""
    config = model.config.get_text_config()  # type: ignore[operator,union-attr]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return float(2 * config.num_hidden_layers * config.hidden_size / parameters)
