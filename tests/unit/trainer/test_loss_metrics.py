"""The metrics of a train step by hand, and the requirements for a sample."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.contracts.spans import VersionSpan, versions_per_token
from tests.unit.trainer.forests import Forest, group_of_rollouts
from trainer.loss.metrics import MetricSums
from trainer.samples import Floats, Sample
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget


def test_metrics_of_two_packs_by_hand() -> None:
    forest = Forest()
    forest.add(forest.ids(3), forest.ids(2), group="a", domain="coding", version=[3, 5])
    forest.add(forest.ids(4), forest.ids(1), group="b", domain="agent", version=5)
    packs = [pack_samples([sample], PassBudget(100)) for sample in forest.samples]
    sums = MetricSums(trainer_version=6)
    ratios = [np.array([1.0, 8.0]), np.array([0.5])]
    for pack, ratio in zip(packs, ratios, strict=True):
        sums.add(
            pack,
            0.25,
            np.log(ratio),
            np.zeros(len(ratio)),
            np.full(len(ratio), 0.7),
            clipped=int((ratio > 5).sum()),
            cut=1,
        )
    metrics = sums.result(skip_reason=None, gradient_norm=1.5)
    assert metrics.applied and metrics.loss == 0.5 and metrics.gradient_norm == 1.5
    assert (metrics.action_tokens, metrics.samples, metrics.packs) == (3, 2, 2)
    assert metrics.clip_fraction == pytest.approx(1 / 3)
    assert metrics.cut_fraction == pytest.approx(2 / 3)
    k1 = (8 * math.log(8) + 0.5 * math.log(0.5)) / 3
    assert metrics.kl_k1 == pytest.approx(k1)
    assert metrics.kl_k3 == pytest.approx(k1 - (7 - 0.5) / 3)
    assert metrics.max_abs_dlogprob == pytest.approx(math.log(8))
    assert metrics.ess == pytest.approx(9.5**2 / (3 * (1 + 64 + 0.25)))
    assert metrics.entropy == pytest.approx(0.7)
    assert metrics.staleness == {1: 2, 3: 1}
    assert metrics.domain_shares == pytest.approx({"agent": 1 / 3, "coding": 2 / 3})


def test_the_merge_ratio_is_sample_tokens_over_distinct_prefixes() -> None:
    samples = group_of_rollouts()
    sums = MetricSums(0)
    pack = pack_samples(samples, PassBudget(10_000))
    edges = np.zeros(len(pack.edges))
    sums.add(pack, 0.0, edges, edges, edges)
    distinct = {tuple(s.ids[: n + 1].tolist()) for s in samples for n in range(len(s.ids))}
    naive = sum(len(s.ids) for s in samples)
    assert sums.result(skip_reason=None, gradient_norm=0.0).merge_ratio == naive / len(distinct)


def test_version_spans_become_one_version_per_token() -> None:
    assert versions_per_token([VersionSpan(3, 0, 2), VersionSpan(4, 2, 3)]).tolist() == [3, 3, 4]
    assert versions_per_token([]).tolist() == []


def made(proximal_logprobs: Floats | None = None, **fields: Any) -> Sample:
    return replace(Sample.of(**fields), proximal_logprobs=proximal_logprobs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"behavior_logprobs": [0.0]}, "behavior_logprobs has shape"),
        ({"behavior_logprobs": [0.0, math.nan]}, "behavior_logprobs holds a value that is not finite"),
        ({"advantage": math.inf}, "advantage holds a value that is not finite"),
        ({"weight": -1.0}, "train weight is negative"),
        ({"proximal_logprobs": np.zeros(3, np.float32)}, "proximal_logprobs has shape"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"state": []}, "state_len 0"),
        ({"state": [-1]}, "not negative"),
    ],
)
def test_a_bad_sample_is_refused_by_name(change: dict[str, object], message: str) -> None:
    good = {"state": [1], "action": [2, 3], "behavior_logprobs": [0.0, 0.0], "advantage": 1.0}
    with pytest.raises(ValueError, match=rf"rollout 'r7'.*{message}"):
        made(**{**good, **change}, rollout="r7")  # type: ignore[arg-type]
