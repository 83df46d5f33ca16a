"""Truncated importance sampling, IcePop and MIS by hand."""

import math
from typing import Any

import pytest
import torch

from orchestrator.contracts.choices import Anchor, MismatchMask
from trainer.loss.correction import CorrectionSettings, correct

BEHAVIOR = torch.tensor([-1.0, -3.0, -1.0], dtype=torch.float64)
TRAINER = torch.tensor([-1.0, -2.0, -2.0], dtype=torch.float64)  # k = 1, e, 1/e
ONE_SAMPLE = torch.zeros(3, dtype=torch.int64)
E = math.e


def weights(sample: torch.Tensor = ONE_SAMPLE, **settings: Any) -> tuple[list[float], list[bool]]:
    correction = correct(CorrectionSettings(**settings), TRAINER, BEHAVIOR, sample)
    return correction.weight.tolist(), correction.cut.tolist()


def test_the_proximal_anchor_truncates_the_weight_at_its_largest() -> None:
    found, cut = weights(anchor=Anchor.PROXIMAL)
    assert found == pytest.approx([1, 2, 1 / E]) and cut == [False, True, False]


def test_icepop_drops_tokens_outside_its_bounds_and_keeps_the_others_weights() -> None:
    found, cut = weights(anchor=Anchor.PROXIMAL, mask=MismatchMask.ICEPOP)
    assert found == pytest.approx([1, E, 0]) and cut == [False, False, True]


def test_mis_weighs_and_drops_samples_whole() -> None:
    found, cut = weights(anchor=Anchor.PROXIMAL, mask=MismatchMask.MIS)
    assert found == pytest.approx([1, 1, 1]) and cut == [False] * 3  # ρ = e^(0 + 1 − 1)
    found, cut = weights(torch.tensor([0, 0, 1]), anchor=Anchor.PROXIMAL, mask=MismatchMask.MIS)
    assert found == pytest.approx([0, 0, 1 / E]) and cut == [True, True, False]  # ρ = e and 1/e


@pytest.mark.parametrize(("mask", "kept"), [("icepop", [1, 1, 0]), ("mis", [1, 1, 1]), ("none", [1, 1, 1])])
def test_with_the_behavior_anchor_a_mask_only_decides(mask: str, kept: list[float]) -> None:
    assert weights(mask=mask)[0] == kept


def test_no_gradient_flows_through_a_weight() -> None:
    leaf = TRAINER.clone().requires_grad_()
    for mask in MismatchMask:
        for anchor in Anchor:
            made = correct(CorrectionSettings(anchor=anchor, mask=mask), leaf, BEHAVIOR, ONE_SAMPLE)
            assert not made.weight.requires_grad


def test_only_the_behavior_anchor_without_a_mask_is_idle() -> None:
    assert CorrectionSettings().idle
    assert (
        not CorrectionSettings(anchor=Anchor.PROXIMAL).idle
        and not CorrectionSettings(mask=MismatchMask.MIS).idle
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tis_max": 0.0}, "tis_max and mis_max must be > 0"),
        ({"mis_max": -1.0}, "tis_max and mis_max must be > 0"),
        ({"icepop_min": 5.0}, "0 ≤ min < max"),
        ({"icepop_min": -0.5}, "0 ≤ min < max"),
    ],
)
def test_impossible_bounds_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CorrectionSettings(**settings)
