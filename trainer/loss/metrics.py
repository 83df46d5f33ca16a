"""The metrics that a train step reports.

Tokens are drawn from the behavior policy μ, so KL(trainer‖behavior) = KL(π‖μ) is estimated with r = π/μ as
k1 = E[r · log r] and k3 = E[r · log r − (r − 1)], which is ≥ 0 in every token and has the smaller variance.
ESS is (Σ r)² / (n · Σ r²), the effective share of the tokens in the weighted sample: 1 on-policy, near 0 far off-policy.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from trainer.loss.skip_reason import SkipReason
from trainer.samples import Floats
from trainer.tree.pack import Pack
from trainer.tree.replay import replayed_tokens

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStepMetrics:
    """One train step. Means are over action tokens of train weight > 0; `applied` is False when it was skipped."""

    applied: bool
    skip_reason: SkipReason | None
    loss: float
    gradient_norm: float  # before clipping
    action_tokens: int
    samples: int  # of train weight > 0
    packs: int  # forward passes into which the tree was cut
    naive_tokens: int  # Σ tokens of the samples: the tokens that one row per sample forwards
    merged_tokens: int  # tokens forwarded
    clip_fraction: float  # share of tokens whose term the loss's ratio bounds changed
    kl_k1: float
    kl_k3: float
    max_abs_dlogprob: float
    mean_abs_dlogprob: float
    ess: float
    entropy: float  # nats per token, after temperature
    cut_fraction: float = 0.0  # share of tokens that the correction truncated or masked
    staleness: Mapping[int, int] = field(default_factory=dict)  # trainer's version − token's version → tokens
    domain_tokens: Mapping[str, int] = field(default_factory=dict)
    # Of a mixture of experts, without its coefficient and not part of `loss`.
    balance_loss: float | None = None
    expert_imbalance: float | None = None  # busiest expert ÷ mean of its layer, in the worst layer
    replayed_share: float | None = None  # share of the naive tokens that went to recorded experts
    route_conflicts: int = 0  # equal tokens not merged, because other experts computed them
    bias_range: float | None = None  # largest range of selection biases of one layer (expert_bias.py)
    logprobs: Floats | None = field(default=None, repr=False, compare=False)
    """Trainer logprobs before the step, float32 of every action token, sample after sample; NaN where the train weight is 0.
    None if they are not kept."""

    @property
    def merge_ratio(self) -> float:
        """Naive tokens ÷ merged tokens; 1 if nothing is shared (or nothing was trained)."""
        return self.naive_tokens / self.merged_tokens if self.merged_tokens else 1.0

    @property
    def domain_shares(self) -> dict[str, float]:
        """Share of the action tokens by domain."""
        return {name: count / self.action_tokens for name, count in self.domain_tokens.items()}


class MetricSums:
    """Sums over the packs of one train step. Order and number of packs do not matter."""

    def __init__(self, trainer_version: int) -> None:
        self._trainer_version = trainer_version
        self._sums = Counter[str]()
        self._values = dict.fromkeys(("loss", "k1", "k3", "dlogprob", "r", "rr", "entropy", "worst"), 0.0)
        self._staleness = Counter[int]()
        self._domains = Counter[str]()
        self._routed: tuple[float | None, float | None] = (None, None)
        self.load: Tensor | None = None  # float64[layers, experts], of the whole train step
        self.bias_range: float | None = None

    def add(
        self,
        pack: Pack,
        loss: float,
        logp: Doubles,
        behavior: Doubles,
        entropy: Doubles,
        *,
        clipped: int = 0,
        cut: int = 0,
    ) -> None:
        """Count one pack; the arrays are [E] along its loss edges, `clipped` and `cut` numbers of them."""
        delta = logp - behavior
        # A metric must not overflow where the clipped loss does not.
        ratio = np.exp(np.clip(delta, -80.0, 80.0))
        values = self._values
        values["loss"] += loss
        values["k1"] += float((ratio * delta).sum())
        values["k3"] += float((ratio * delta - (ratio - 1)).sum())
        values["dlogprob"] += float(np.abs(delta).sum())
        values["worst"] = max(values["worst"], float(np.abs(delta).max(initial=0.0)))
        values["r"] += float(ratio.sum())
        values["rr"] += float((ratio * ratio).sum())
        values["entropy"] += float(entropy.sum())
        versions = pack.edges.gather(pack.samples, lambda sample: sample.versions).astype(np.int64)
        ages, counts = np.unique(self._trainer_version - versions, return_counts=True)
        self._staleness.update(dict(zip(ages.tolist(), counts.tolist(), strict=True)))
        for sample in pack.samples:
            self._domains[sample.domain] += sample.trained_tokens
        self._sums.update(
            tokens=len(logp),
            clipped=clipped,
            cut=cut,
            samples=len(pack.samples),
            packs=len(pack.passes),
            naive=pack.naive_tokens,
            merged=pack.plan.tokens,
            conflicts=pack.route_conflicts,
            replayed=replayed_tokens(pack.plan, pack.last),
            recorded=int(pack.plan.routes is not None),
        )

    def json(self) -> dict[str, Any]:
        """The sums so far as JSON values, for `absorb`, without the counts of tree/routing.py."""
        return {
            "sums": dict(self._sums),
            "values": self._values,
            "staleness": [list(item) for item in self._staleness.items()],
            "domains": dict(self._domains),
        }

    def absorb(self, other: Mapping[str, Any]) -> None:
        """Add the sums of another rank for the same train step, from its `json`."""
        worst = max(self._values["worst"], other["values"]["worst"])
        for name, value in other["values"].items():
            self._values[name] += value
        self._values["worst"] = worst
        self._sums.update(other["sums"])
        self._staleness.update(dict(map(tuple, other["staleness"])))
        self._domains.update(other["domains"])

    def routed(self, balance_loss: float | None, imbalance: float | None, load: Tensor | None) -> None:
        """Set the counts of tree/routing.py for the whole train step."""
        self._routed = balance_loss, imbalance
        self.load = load

    @property
    def all_cut(self) -> bool:
        """Whether the correction truncated or masked every token so far; False without tokens."""
        return 0 < self._sums["tokens"] == self._sums["cut"]

    def result(self, *, skip_reason: SkipReason | None, gradient_norm: float) -> TrainStepMetrics:
        """The metrics of the packs added so far."""
        sums, values = self._sums, self._values
        n = max(sums["tokens"], 1)
        return TrainStepMetrics(
            applied=skip_reason is None,
            skip_reason=skip_reason,
            loss=values["loss"],
            gradient_norm=gradient_norm,
            action_tokens=sums["tokens"],
            samples=sums["samples"],
            packs=sums["packs"],
            naive_tokens=sums["naive"],
            merged_tokens=sums["merged"],
            clip_fraction=sums["clipped"] / n,
            kl_k1=values["k1"] / n,
            kl_k3=values["k3"] / n,
            max_abs_dlogprob=values["worst"],
            mean_abs_dlogprob=values["dlogprob"] / n,
            ess=values["r"] ** 2 / (n * values["rr"]) if values["rr"] else 1.0,
            entropy=values["entropy"] / n,
            cut_fraction=sums["cut"] / n,
            staleness=dict(sorted(self._staleness.items())),
            domain_tokens=dict(sorted(self._domains.items())),
            balance_loss=self._routed[0],
            expert_imbalance=self._routed[1],
            replayed_share=sums["replayed"] / max(sums["naive"], 1) if sums["recorded"] else None,
            route_conflicts=sums["conflicts"],
            bias_range=self.bias_range,
        )
