"""CPU time of several methods on one batch, measured in turns, so that a slow stretch of a shared machine hits all of them.

A method is a list of packs. Its packs are dealt into slices of like composition; in each round every method runs its next slice, and what counts
are the seconds per floating-point operation of that round. A comparison is the median over rounds of the two methods' rates, times their operations.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.tree.execute import backward
from trainer.tree.pack import Pack

MakePacks = Callable[[], list[Pack]]
SLICES = 6  # at most, per method


@dataclass(slots=True, eq=False)
class Timed:
    """What the rounds said of one method. `losses` has the sum of −log p of each sample that was run, by the sample's id()."""

    tokens: int
    flops: float
    slices: int
    rates: list[float] = field(default_factory=list)  # seconds per operation, one per round
    plannings: list[float] = field(default_factory=list)  # seconds for the whole method, one per round
    losses: dict[int, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of all packs, at the median rate; planning is included."""
        return statistics.median(self.rates) * self.flops

    @property
    def planning(self) -> float:
        """Seconds."""
        return statistics.median(self.plannings)

    def bound(self, other: "Timed") -> float:
        """How many times the operations of `other` this method needs."""
        return self.flops / other.flops

    def over(self, other: "Timed") -> float:
        """How many times the CPU time of `other` this method takes; both were run in the same rounds."""
        pairs = zip(self.rates, other.rates, strict=True)
        return statistics.median(own / theirs for own, theirs in pairs) * self.bound(other)


class Race:
    """`run` may be called again: the rounds add up."""

    def __init__(self, model: Any, methods: Mapping[str, MakePacks]) -> None:
        self._model, self._methods = model, dict(methods)
        self.timed: dict[str, Timed] = {}
        for name, make_packs in self._methods.items():
            packs = make_packs()
            tokens = sum(pack.plan.tokens for pack in packs)
            self.timed[name] = Timed(tokens, flops(model, packs), min(SLICES, len(packs)))

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for name, timed in self.timed.items():
                self._turn(timed, self._methods[name])

    def _turn(self, timed: Timed, make_packs: MakePacks) -> None:
        """Plan a method's packs and run forward and backward over its next slice."""
        self._model.zero_grad()
        started = time.process_time()
        packs = make_packs()
        planning = time.process_time() - started
        part = packs[len(timed.rates) % timed.slices :: timed.slices]
        started = time.process_time()
        scores = [backward(self._model, pack, lambda rows, logp: -logp.sum()) for pack in part]
        spent = time.process_time() - started
        for pack, one in zip(part, scores, strict=True):
            sums = np.bincount(pack.edges.sample, -one.logprobs.numpy(), len(pack.samples))
            timed.losses.update(zip(map(id, pack.samples), sums.tolist(), strict=True))
        timed.plannings.append(planning)
        timed.rates.append(spent / flops(self._model, part) + planning / timed.flops)


def flops(model: Any, packs: Sequence[Pack]) -> float:
    """Forward and backward. A matrix product costs 2 operations per multiply-add and twice that backwards; the attention
    backward has 5 products for the forward's 2; the head runs its forward twice."""
    config = model.config
    weights = sum(p.numel() for p in model.model.layers.parameters() if p.ndim == 2)
    per_token = 6 * weights
    per_pair = config.num_hidden_layers * (2 + 5) * 2 * config.num_attention_heads * config.head_dim
    per_edge = 8 * config.hidden_size * config.vocab_size
    return float(
        sum(per_token * p.plan.tokens + per_pair * p.plan.pairs + per_edge * len(p.edges) for p in packs)
    )
