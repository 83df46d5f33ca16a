"""The report of one train step in `train_steps.metrics`: JSON, readable by SQL.

SELECT train_step, metrics->>'loss', metrics->'domains'->'coding'->>'performance' FROM train_steps

The last train step of a batch also has `checkpoint`: the files, bytes and seconds of its version, written and linked (files.Written).
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from orchestrator.pool.batches import BatchRollout
from trainer.loss.metrics import TrainStepMetrics


def report(
    metrics: TrainStepMetrics,
    rollouts: Sequence[BatchRollout],
    *,
    lr: float,
    cpu_s: float,
    wall_s: float,
    seconds: Mapping[str, float],
    replay: bool = False,
) -> dict[str, Any]:
    """One train step as JSON values; non-finite numbers become null. Seconds are of this train step alone, `seconds` by phase. `replay`: routing
    replay is on; then a missing share is reported as 0."""
    values = {
        "applied": metrics.applied,
        "skip_reason": metrics.skip_reason,
        "loss": metrics.loss,
        "gradient_norm": metrics.gradient_norm,
        "lr": lr,
        "clip_fraction": metrics.clip_fraction,
        "cut_fraction": metrics.cut_fraction,
        "balance_loss": metrics.balance_loss,
        "expert_imbalance": metrics.expert_imbalance,
        "replayed_share": metrics.replayed_share or 0.0 if replay else metrics.replayed_share,
        "route_conflicts": metrics.route_conflicts,
        "bias_range": metrics.bias_range,
        "kl_k1": metrics.kl_k1,
        "kl_k3": metrics.kl_k3,
        "max_abs_dlogprob": metrics.max_abs_dlogprob,
        "mean_abs_dlogprob": metrics.mean_abs_dlogprob,
        "ess": metrics.ess,
        "entropy": metrics.entropy,
        "staleness": {str(age): tokens for age, tokens in metrics.staleness.items()},
        "groups": len({rollout.group_id for rollout in rollouts}),
        "rollouts": len(rollouts),
        "samples": metrics.samples,
        "packs": metrics.packs,
        "action_tokens": metrics.action_tokens,
        "tokens_naive": metrics.naive_tokens,
        "tokens_merged": metrics.merged_tokens,
        "merge_ratio": metrics.merge_ratio,
        "reward": fmean(rollout.total for rollout in rollouts) if rollouts else None,
        "performance": fmean(rollout.performance for rollout in rollouts) if rollouts else None,
        "domains": _domains(metrics.domain_shares, rollouts),
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "seconds": dict(seconds),
    }
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


def _domains(shares: Mapping[str, float], rollouts: Sequence[BatchRollout]) -> dict[str, dict[str, float]]:
    """Per domain: its share of the tokens, its rollouts, and their means."""
    return {
        name: {
            "token_share": shares.get(name, 0.0),
            "rollouts": len(members),
            "reward": fmean(member.total for member in members),
            "performance": fmean(member.performance for member in members),
        }
        for name in sorted({rollout.domain for rollout in rollouts})
        for members in [[rollout for rollout in rollouts if rollout.domain == name]]
    }
