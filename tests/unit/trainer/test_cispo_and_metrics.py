"""The loss by hand, its denominator, and the metrics by hand."""

import math

import numpy as np
import pytest
import torch

from tests.unit.trainer.forests import Forest, group_of_rollouts
from trainer.loss.aggregation import normalisers
from trainer.loss.cispo import CispoSettings, cispo
from trainer.loss.metrics import MetricSums
from trainer.loss.nll import nll
from trainer.samples import Sample, expand_spans
from trainer.tree.pack import pack_samples

THIRD = torch.full((3,), 1 / 3)


def test_three_tokens_by_hand() -> None:
    logp = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    loss, ratio = cispo(
        logp, torch.tensor([-1.0, -4.0, -0.5]), torch.tensor([1.0, 1.0, -2.0]), THIRD, CispoSettings()
    )
    torch.autograd.backward(loss)
    assert ratio.tolist() == [1.0, 5.0, 1.0]  # e² = 7.39 is clipped
    assert loss.item() == pytest.approx(10 / 3)
    assert logp.grad is not None
    # The clipped token still learns, with weight 5; nothing flows through the ratio.
    assert logp.grad.tolist() == pytest.approx([-1 / 3, -5 / 3, 2 / 3])


def test_bounds_are_absolute_and_negative_advantages_can_be_scaled() -> None:
    logp, behavior = torch.tensor([-3.0, -1.0, -1.0]), torch.tensor([-1.0, -1.0, -2.0])
    loss, ratio = cispo(
        logp, behavior, torch.tensor([1.0, -1.0, 1.0]), THIRD, CispoSettings(0.5, 2.0, negative_scale=0.2)
    )
    assert ratio.tolist() == [0.5, 1.0, 2.0]
    assert loss.item() == pytest.approx(-(0.5 * 1 * -3 + 1 * -0.2 * -1 + 2 * 1 * -1) / 3)


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (-0.1, 5.0), (1.0, 1.0)])
def test_impossible_ratio_bounds_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="ratio bounds"):
        CispoSettings(*bounds)


def test_nll_ignores_advantages() -> None:
    assert nll(torch.tensor([-1.0, -2.0]), torch.tensor([0.5, 0.25])).item() == 1.0


def weighted(group: str, tokens: int, weight: float | list[float]) -> Sample:
    return Sample.of(
        [1], [2] * tokens, behavior_logprobs=[0.0] * tokens, advantage=1.0, group=group, weight=weight
    )


def test_the_denominator_counts_action_tokens_of_weight_above_zero() -> None:
    samples = [
        weighted("a", 3, 1.0),
        weighted("a", 2, [0.0, 0.5]),
        weighted("b", 4, 0.0),
        weighted("c", 1, 1.0),
    ]
    assert normalisers(samples, "token") == pytest.approx([1 / 5, 1 / 5, 0.0, 1 / 5])
    # Two prompts have trainable tokens: a with 4, c with 1.
    assert normalisers(samples, "prompt") == pytest.approx([1 / 8, 1 / 8, 0.0, 1 / 2])


def test_an_unknown_aggregation_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="known are token and prompt"):
        normalisers([], "sequence")  # type: ignore[arg-type]


def test_metrics_of_two_packs_by_hand() -> None:
    forest = Forest()
    forest.add(forest.ids(3), forest.ids(2), group="a", domain="coding", version=[3, 5])
    forest.add(forest.ids(4), forest.ids(1), group="b", domain="agent", version=5)
    packs = pack_samples(forest.samples, budget=1)
    sums = MetricSums(trainer_version=6, ratio_min=0.0, ratio_max=5.0)
    ratios = [np.array([1.0, 8.0]), np.array([0.5])]
    for pack, ratio in zip(packs, ratios, strict=True):
        sums.add(pack, 0.25, np.log(ratio), np.zeros(len(ratio)), np.full(len(ratio), 0.7))
    metrics = sums.result(skip_reason=None, gradient_norm=1.5)
    assert metrics.applied and metrics.loss == 0.5 and metrics.gradient_norm == 1.5
    assert (metrics.action_tokens, metrics.samples, metrics.packs) == (3, 2, 2)
    assert metrics.clip_fraction == pytest.approx(1 / 3)
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
    sums = MetricSums(0, 0.0, 5.0)
    for pack in pack_samples(samples, budget=10_000):
        edges = np.zeros(len(pack.edges))
        sums.add(pack, 0.0, edges, edges, edges)
    distinct = {tuple(s.ids[: n + 1].tolist()) for s in samples for n in range(len(s.ids))}
    naive = sum(len(s.ids) for s in samples)
    assert sums.result(skip_reason=None, gradient_norm=0.0).merge_ratio == naive / len(distinct)


def test_version_spans_become_one_version_per_token() -> None:
    assert expand_spans([(3, 2), (4, 1)]).tolist() == [3, 3, 4]
    assert expand_spans([]).tolist() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"behavior_logprobs": [0.0]}, "behavior_logprobs has shape"),
        ({"behavior_logprobs": [0.0, math.nan]}, "behavior_logprobs holds a value that is not finite"),
        ({"advantage": math.inf}, "advantage holds a value that is not finite"),
        ({"weight": -1.0}, "train weight is negative"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"state": []}, "state_len 0"),
        ({"state": [-1]}, "not negative"),
    ],
)
def test_a_bad_sample_is_refused_by_name(change: dict[str, object], message: str) -> None:
    good = {"state": [1], "action": [2, 3], "behavior_logprobs": [0.0, 0.0], "advantage": 1.0}
    with pytest.raises(ValueError, match=rf"rollout 'r7'.*{message}"):
        Sample.of(**{**good, **change}, rollout="r7")  # type: ignore[arg-type]
