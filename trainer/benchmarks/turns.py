"""Time of several methods on one batch (process time, unless another clock is given), measured in turns, so that a slow phase of a shared machine
hits all of them.

A method is a list of packs. Its packs are dealt into slices of similar composition. In each round every method runs its next slice; the measurement
is the seconds per floating-point operation of that round. A comparison is the median over rounds of the two methods' rates, times their operations.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.tree.execute import backward
from trainer.tree.pack import Pack

MakePacks = Callable[[], list[Pack]]
MIN_SHARE = 0.1  # share of an expensive method that is timed


@dataclass(slots=True, eq=False, kw_only=True)
class Timed:
    """The measurements of one method. `losses` has the sum of −log p of each sample that was run, by the sample's id()."""

    tokens: int
    flops: float
    slices: int
    rates: list[float] = field(default_factory=list)  # seconds per operation, one per round
    plannings: list[float] = field(default_factory=list)  # seconds for the whole method, one per round
    ran: dict[int, float] = field(default_factory=dict)  # operations by slice
    losses: dict[int, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of all packs, at the median rate; planning is included."""
        return statistics.median(self.rates) * self.flops

    @property
    def planning(self) -> float:
        """Seconds."""
        return statistics.median(self.plannings)

    @property
    def share(self) -> float:
        """The timed share of the method's operations."""
        return sum(self.ran.values()) / self.flops

    def bound(self, other: "Timed") -> float:
        """How many times the operations of `other` this method needs."""
        return self.flops / other.flops

    def over(self, other: "Timed") -> float:
        """How many times the CPU time of `other` this method takes; both were run in the same rounds."""
        pairs = zip(self.rates, other.rates, strict=True)
        return statistics.median(rate / other_rate for rate, other_rate in pairs) * self.bound(other)


class Race:
    """`rounds` rounds at every `run`; the rounds of several runs add up.

    Of a method with more than `most` operations, only about `most` are timed in one `run`, but at least `MIN_SHARE` of it: every n-th slice.
    """

    def __init__(
        self,
        model: Any,
        methods: Mapping[str, MakePacks],
        *,
        rounds: int,
        most: float = math.inf,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._model, self._methods, self._rounds, self._clock = model, dict(methods), rounds, clock
        self.timed: dict[str, Timed] = {}
        for name, make_packs in self._methods.items():
            packs = make_packs()
            tokens, operations = sum(pack.plan.tokens for pack in packs), flops(model, packs)
            parts = min(max(1, math.ceil(operations / most)), round(1 / MIN_SHARE))
            self.timed[name] = Timed(tokens=tokens, flops=operations, slices=min(rounds * parts, len(packs)))

    def run(self) -> None:
        for _ in range(self._rounds):
            for name, timed in self.timed.items():
                self._turn(timed, self._methods[name])

    def _turn(self, timed: Timed, make_packs: MakePacks) -> None:
        """Plan a method's packs and run forward and backward over its next slice."""
        self._model.zero_grad()
        started = self._clock()
        packs = make_packs()
        planning = self._clock() - started
        chosen = self._slice(timed)
        part = packs[chosen :: timed.slices]
        operations = flops(self._model, part)
        started = self._clock()
        scores = [backward(self._model, pack, lambda rows, logp: -logp.sum()) for pack in part]
        spent = self._clock() - started
        for pack, score in zip(part, scores, strict=True):
            sums = np.bincount(pack.edges.sample, -score.logprobs.float().cpu().numpy(), len(pack.samples))
            timed.losses.update(zip(map(id, pack.samples), sums.tolist(), strict=True))
        timed.ran[chosen] = operations
        timed.plannings.append(planning)
        timed.rates.append(spent / operations + planning / timed.flops)

    def _slice(self, timed: Timed) -> int:
        """The slice of the next round. With more slices than rounds, they are evenly spaced, and the next `run` takes their neighbours: packs come
        longest first."""
        cycle, number = divmod(len(timed.rates), self._rounds)
        if timed.slices <= self._rounds:
            return number % timed.slices
        return (number * timed.slices // self._rounds + cycle) % timed.slices


def flops(model: Any, packs: Sequence[Pack]) -> float:
    """Operations of forward and backward. A matrix product costs 2 operations per multiply-add and twice that backwards; the attention
    backward has 5 products for the forward's 2; the head runs its forward twice. Only the experts that a token goes through count."""
    config = model.config
    active = getattr(config, "num_experts_per_tok", 0) / max(1, getattr(config, "num_experts", 0) or 0)
    weights = sum(
        p.numel() * (active if p.ndim == 3 else 1) for p in model.model.layers.parameters() if p.ndim >= 2
    )
    per_token = 6 * weights
    per_pair = config.num_hidden_layers * (2 + 5) * 2 * config.num_attention_heads * config.head_dim
    per_edge = 8 * config.hidden_size * config.vocab_size
    return float(
        sum(per_token * p.plan.tokens + per_pair * p.plan.pairs + per_edge * len(p.edges) for p in packs)
    )
