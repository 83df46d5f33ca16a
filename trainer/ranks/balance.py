"""Which rank trains which samples of a train step: balanced by the cost of their trees, without splitting a shared state if possible.

    cost of a rank = T + pair_cost · P        T merged tokens, P visible (query, key) pairs of the tree of its samples

A token costs the model's matrix products, a pair costs attention (`pair_cost`, in tokens). The units are groups: nearly all sharing is
inside them. If groups leave the busiest rank with more than `UNEVEN` times the mean, rollouts are tried as units. They are used if the
busiest rank then has less work, although tokens shared by a group's rollouts are then forwarded on several ranks. Units are assigned in
order of falling cost, each to the rank with the least work. The result depends only on the samples, so every rank computes the same.
"""

from collections.abc import Callable, Hashable, Sequence

from torch import nn

from trainer.samples import Sample
from trainer.tree.plan import FlatTree

UNEVEN = 1.1


def shares(samples: Sequence[Sample], ranks: int, pair_cost: float) -> list[list[int]]:
    """The indices in `samples` that each rank trains, ascending; every sample of train weight > 0 once. A rank may have none."""
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
    maximum, mean = busiest(by_group)
    if maximum <= UNEVEN * mean:
        return by_group
    by_rollout = _split(
        samples, trained, ranks, cost, lambda sample: (sample.seq, sample.group, sample.rollout)
    )
    return by_rollout if busiest(by_rollout)[0] < maximum else by_group


def _split(
    samples: Sequence[Sample],
    places: Sequence[int],
    ranks: int,
    cost: Callable[[Sequence[int]], float],
    unit_of: Callable[[Sample], Hashable],
) -> list[list[int]]:
    units: dict[Hashable, list[int]] = {}
    for index in places:
        units.setdefault(unit_of(samples[index]), []).append(index)
    split: list[list[int]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for price, unit in sorted(
        ((cost(unit), unit) for unit in units.values()), key=lambda item: (-item[0], item[1])
    ):
        rank = load.index(min(load))
        load[rank] += price
        split[rank] += unit
    return [sorted(item) for item in split]


def pair_cost(model: nn.Module) -> float:
    """The cost of a visible pair, in tokens: 2 · L · d multiplications (scores, values) for a pair, N for a token of a model with N parameters."""
    config = model.config.get_text_config()  # type: ignore[operator,union-attr]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return float(2 * config.num_hidden_layers * config.hidden_size / parameters)
