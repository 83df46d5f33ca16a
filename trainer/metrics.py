"""The trainer's Prometheus metrics: the newest train step as gauges, all train steps as counters. The whole history is in `train_steps`.

With many ranks, rank 0 reports for all.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from orchestrator.runtime.metrics import LONG, each, only
from trainer.loss.skip_reason import BAD_BATCH, SkipReason

AGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # policy versions

# Key of a train step's report → (metric, description).
_GAUGES = {
    "loss": ("penstock_train_loss", "Loss of the newest train step."),
    "gradient_norm": ("penstock_train_gradient_norm", "Norm of its gradient, before clipping."),
    "lr": ("penstock_train_learning_rate", "Its learning rate."),
    "clip_fraction": ("penstock_train_clip_ratio", "Share of its tokens whose importance ratio was clipped."),
    "cut_fraction": ("penstock_train_cut_ratio", "Share of its tokens that the correction truncated or masked."),
    "kl_k1": ("penstock_train_kl_k1_nats", "KL(trainer || behavior) per token, estimator k1."),
    "kl_k3": ("penstock_train_kl_k3_nats", "KL(trainer || behavior) per token, estimator k3."),
    "max_abs_dlogprob": ("penstock_train_largest_logprob_difference_nats", "Largest |trainer - behavior logprob| of its tokens."),
    "mean_abs_dlogprob": ("penstock_train_logprob_difference_nats", "Mean |trainer - behavior logprob| of its tokens."),
    "ess": ("penstock_train_effective_sample_ratio", "Share of the tokens that the weighted sample is worth."),
    "entropy": ("penstock_train_entropy_nats", "Entropy of the policy per token."),
    "merge_ratio": ("penstock_train_merge_ratio", "Naive tokens divided by merged tokens."),
    "balance_loss": ("penstock_train_balance_loss", "Load-balancing loss of a mixture of experts."),
    "expert_imbalance": ("penstock_train_expert_imbalance_ratio", "Busiest expert divided by the mean of its layer, worst layer."),
    "replayed_share": ("penstock_train_replayed_ratio", "Share of the tokens sent to recorded experts."),
}  # fmt: skip
_DOMAINS = {
    "reward": ("penstock_train_reward", "Mean reward of the newest train step's rollouts."),
    "performance": (
        "penstock_train_performance_ratio",
        "Mean performance of the newest train step's rollouts, in [0, 1].",
    ),
    "token_share": ("penstock_train_token_share_ratio", "Share of its action tokens."),
}


class StalenessHistogram(Collector):
    """Trained action tokens by the trainer's version minus their own."""

    def __init__(self) -> None:
        self._tokens = Tally[int]()

    def add(self, tokens: Mapping[str, int]) -> None:
        """Add the tokens of a report: age in versions → tokens."""
        self._tokens.update({int(age): count for age, count in tokens.items()})

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """One family, with cumulative buckets."""
        tokens = dict(self._tokens)
        buckets = [(str(float(bound)), sum(n for age, n in tokens.items() if age <= bound)) for bound in AGES]
        total = sum(age * count for age, count in tokens.items())
        yield HistogramMetricFamily(
            "penstock_train_staleness_versions",
            "Trained action tokens by the trainer's policy version minus the one that made them.",
            buckets=[*buckets, ("+Inf", sum(tokens.values()))],
            sum_value=total,
        )


class TrainerMetrics:
    """The metrics of one trainer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {key: Gauge(*arguments, registry=registry) for key, arguments in _GAUGES.items()}
        self._domains = {
            key: Gauge(*arguments, ["domain"], registry=registry) for key, arguments in _DOMAINS.items()
        }
        self._staleness = StalenessHistogram()
        registry.register(self._staleness)
        self._steps = Counter(
            "penstock_train_steps",
            "Train steps: applied, or why they were skipped.",
            ["outcome"],
            registry=registry,
        )
        self._tokens = Counter(
            "penstock_train_tokens",
            "Tokens of train steps: action, naive (one row per sample), merged (forwarded).",
            ["kind"],
            registry=registry,
        )
        self._step_s = Histogram(
            "penstock_train_step_seconds",
            "One train step, without reading, saving and committing.",
            buckets=LONG,
            registry=registry,
        )
        self.phase_s = Counter(
            "penstock_train_phase_seconds",
            "Where the trainer's time goes, by phase (ops/bench loop); wait: for a batch.",
            ["phase"],
            registry=registry,
        )
        self.batches = Counter(
            "penstock_batches",
            "Batches: committed, undone by a rewind, or quarantined; failed: tries to train one that ended with an error.",
            ["outcome"],
            registry=registry,
        )
        each(self._steps, "applied", *(reason for reason in SkipReason if reason not in BAD_BATCH))
        each(self.batches, "committed", "undone", "quarantined", "failed")
        self.checkpoint_s = Histogram(
            "penstock_checkpoint_seconds",
            "Writing a checkpoint until it is durable.",
            buckets=LONG,
            registry=registry,
        )
        self.checkpoint_bytes = Counter(
            "penstock_checkpoint_bytes",
            "Bytes of checkpoints, by whether they were written or linked.",
            ["how"],
            registry=registry,
        )
        self.version = Gauge(
            "penstock_trainer_policy_version", "The version that the trainer stands on.", registry=registry
        )

    def trained(self, values: Mapping[str, Any]) -> None:
        """Record one train step; `values` is its report."""
        for key, gauge in self._gauges.items():
            gauge.set(float("nan") if values.get(key) is None else values[key])
        for key, gauge in self._domains.items():
            only(gauge, {(name,): figures[key] for name, figures in values["domains"].items()})
        self._staleness.add(values["staleness"])
        self._steps.labels("applied" if values["applied"] else values["skip_reason"]).inc()
        for kind, key in {
            "action": "action_tokens",
            "naive": "tokens_naive",
            "merged": "tokens_merged",
        }.items():
            self._tokens.labels(kind).inc(values[key])
        self._step_s.observe(values["wall_s"])

    def spent(self, seconds: Mapping[str, float]) -> None:
        """Record wall seconds by phase."""
        for phase, elapsed in seconds.items():
            self.phase_s.labels(phase).inc(elapsed)

    def saved(self, written: Mapping[str, Any]) -> None:
        """Record a written checkpoint."""
        self.checkpoint_s.observe(written["seconds"])
        self.checkpoint_bytes.labels("written").inc(written["written_bytes"])
        self.checkpoint_bytes.labels("linked").inc(written["linked_bytes"])
