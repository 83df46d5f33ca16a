"""Every loss on three tokens by hand, loss and gradient, and the properties common to all."""

import inspect
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

import pytest
import torch

from orchestrator.settings.trainer import RATIO_BOUNDS, LossName
from trainer.loss.base import Loss, Tokens, check_bounds
from trainer.loss.choose import BOUNDED, UNBOUNDED, make_loss
from trainer.loss.cispo import Cispo
from trainer.loss.dapo import Dapo
from trainer.loss.grpo import Grpo
from trainer.loss.gspo import Gspo
from trainer.loss.reinforce import Reinforce
from trainer.loss.sft import Sft

GUIDE: Final = Path(__file__).parents[3] / "ops/guides/losses.md"
SETTINGS: Final = "orchestrator/settings/trainer.py"
NAMES: Final = (*BOUNDED, *UNBOUNDED)
THIRDS = (1 / 3, 1 / 3, 1 / 3)
RATIOS = (1.0, 1.25, 0.5)
SIGNS = (1.0, 1.0, -2.0)


def evaluate(
    loss: Loss,
    logp: Sequence[float],
    anchor: Sequence[float],
    advantage: Sequence[float] = SIGNS,
    coefficient: Sequence[float] = THIRDS,
    sample: Sequence[int] = (0, 0, 1),
) -> tuple[float, list[float], list[bool]]:
    """(loss, gradient by logp, clipped), in float64."""
    leaf = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    given, gain, share = (
        torch.tensor(values, dtype=torch.float64) for values in (anchor, advantage, coefficient)
    )
    value = loss(
        Tokens(
            logp=leaf,
            anchor=given,
            advantage=gain,
            coefficient=share,
            sample=torch.tensor(sample, dtype=torch.int64),
        )
    )
    torch.autograd.backward(value.loss)
    assert leaf.grad is not None
    return value.loss.item(), leaf.grad.tolist(), value.clipped.tolist()


def by_ratio(
    loss: Loss,
    ratios: Sequence[float],
    advantage: Sequence[float] = SIGNS,
    coefficient: Sequence[float] = THIRDS,
) -> tuple[float, list[float], list[bool]]:
    """The same for tokens of logprob −1 with these ratios to their anchors."""
    return evaluate(loss, [-1.0] * 3, [-1.0 - math.log(r) for r in ratios], advantage, coefficient)


def test_cispo_by_hand() -> None:
    loss, gradient, clipped = evaluate(Cispo(), (-1.0, -2.0, -0.5), (-1.0, -4.0, -0.5))
    assert loss == pytest.approx(10 / 3)
    # The clipped token still learns, with weight 5 instead of e² = 7.39; nothing flows through the ratio.
    assert gradient == pytest.approx([-1 / 3, -5 / 3, 2 / 3])
    assert clipped == [False, True, False]


def test_the_lower_bound_of_cispo_raises_a_weight() -> None:
    loss, gradient, clipped = by_ratio(Cispo(0.75, 1.2), RATIOS)
    assert loss == pytest.approx((1 + 1.2 - 2 * 0.75) / 3)
    assert gradient == pytest.approx([-1 / 3, -1.2 / 3, 2 * 0.75 / 3])
    assert clipped == [False, True, True]


def test_grpo_by_hand() -> None:
    loss, gradient, clipped = by_ratio(Grpo(), RATIOS)
    assert loss == pytest.approx(-0.2)
    assert gradient == pytest.approx([-1 / 3, 0.0, 0.0])
    assert clipped == [False, True, True]


def test_dapo_by_hand() -> None:
    loss, gradient, clipped = by_ratio(Dapo(), RATIOS)
    assert loss == pytest.approx(-0.65 / 3)
    assert gradient == pytest.approx([-1 / 3, -1.25 / 3, 0.0])
    assert clipped == [False, False, True]


def test_gspo_by_hand() -> None:
    loss, gradient, clipped = by_ratio(Gspo(0.8, 1.2), (1.0, 1.21, 0.5), coefficient=(0.25, 0.25, 0.5))
    assert loss == pytest.approx(0.25)
    assert gradient == pytest.approx([-0.275, -0.275, 0.0])
    assert clipped == [False, False, True]


def test_gspo_with_its_own_bounds_clips_a_sample_whole() -> None:
    _, gradient, clipped = by_ratio(Gspo(), (1.0, 1.21, 1.0), coefficient=(0.25, 0.25, 0.5))
    assert gradient == pytest.approx([0.0, 0.0, 1.0])
    assert clipped == [True, True, False]


def test_reinforce_by_hand() -> None:
    loss, gradient, clipped = evaluate(Reinforce(), (-1.0, -2.0, -0.5), (-9.0, -9.0, -9.0))
    assert loss == pytest.approx(2 / 3)
    assert gradient == pytest.approx([-1 / 3, -1 / 3, 2 / 3])
    assert clipped == [False] * 3


def test_sft_by_hand_ignores_advantages_and_anchors() -> None:
    loss, gradient, clipped = evaluate(Sft(), (-1.0, -2.0, -0.5), (-9.0, -9.0, -9.0))
    assert loss == pytest.approx(3.5 / 3)
    assert gradient == pytest.approx([-1 / 3] * 3)
    assert clipped == [False] * 3


@pytest.mark.parametrize("loss", [Grpo(), Dapo(), Gspo(0.8, 1.2)], ids=["grpo", "dapo", "gspo"])
def test_the_surrogate_cuts_only_what_already_moved_the_wanted_way(loss: Loss) -> None:
    # A bad token that grew to 1.5 and a good one that fell to 0.5 must still be pushed back.
    _, gradient, clipped = evaluate(
        loss,
        [-1.0] * 2,
        [-1.0 - math.log(1.5), -1.0 - math.log(0.5)],
        (-1.0, 1.0),
        (1.0, 1.0),
        (0, 1),
    )
    assert gradient == pytest.approx([1.5, -0.5]) and clipped == [False, False]


@pytest.mark.parametrize("name", NAMES)
def test_at_ratio_one_every_policy_gradient_is_that_of_reinforce(name: str) -> None:
    loss = make_loss(name, 0.9, 1.1)
    _, gradient, clipped = by_ratio(loss, (1.0, 1.0, 1.0))
    expected = [-1 / 3] * 3 if name == "sft" else [-1 / 3, -1 / 3, 2 / 3]
    assert gradient == pytest.approx(expected) and clipped == [False] * 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_token_far_from_its_anchor_leaves_the_gradient_finite(name: str, sign: float) -> None:
    far = ([-1.0, -1.0, -800.0], [-800.0, -1.0, -1.0], (sign, 1.0, sign))
    loss, gradient, _ = evaluate(make_loss(name, 0.8, 1.2), *far)
    assert math.isfinite(loss) and all(math.isfinite(value) for value in gradient)


@pytest.mark.parametrize("name", NAMES)
def test_without_tokens_the_loss_is_zero(name: str) -> None:
    none = torch.zeros(0, requires_grad=True)
    value = make_loss(name, 0.8, 1.2)(
        Tokens(
            logp=none,
            anchor=none.detach(),
            advantage=none.detach(),
            coefficient=none.detach(),
            sample=torch.zeros(0, dtype=torch.int64),
        )
    )
    assert value.loss.item() == 0 and value.clipped.tolist() == []


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (-0.1, 5.0), (1.0, 1.0), (0.0, 0.2), (1.1, 2.0)])
@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_that_are_not_absolute_ratios_around_one_are_refused(
    name: str, bounds: tuple[float, float]
) -> None:
    with pytest.raises(ValueError, match=r"an offset of 0\.2 above 1 is written 1\.2"):
        make_loss(name, *bounds)


def test_an_unknown_loss_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"'ppo'; known: {', '.join(NAMES)}"):
        make_loss("ppo", 0.0, 5.0)


@pytest.mark.parametrize("name", BOUNDED)
def test_the_configuration_has_the_bounds_of_the_formulas(name: str) -> None:
    assert name in RATIO_BOUNDS, (
        f"{name}: write its bounds into RATIO_BOUNDS of {SETTINGS}, else it has those of cispo"
    )
    check_bounds(*RATIO_BOUNDS[name])
    assert make_loss(name, *RATIO_BOUNDS[name]) == type(make_loss(name, 0.8, 1.2))()


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_has_its_value_its_example_that_is_repeated_here_and_its_row(name: str) -> None:
    assert name in get_args(LossName), f"{name}: add it to LossName of {SETTINGS}"
    formula = inspect.getmodule(type(make_loss(name, 0.8, 1.2)))
    assert "\nExample" in (inspect.getdoc(formula) or ""), (
        f"{name}: give an example of three tokens in the docstring of its file"
    )
    assert any(test.startswith(f"test_{name}_by_hand") for test in globals()), (
        f"{name}: repeat the example of its docstring here, in test_{name}_by_hand"
    )
    bounds = f"{RATIO_BOUNDS[name][0]:g} … {RATIO_BOUNDS[name][1]:g}" if name in RATIO_BOUNDS else "none"
    assert re.search(rf"^\| `{name}` \| [^|]+ \| {bounds} \|", GUIDE.read_text(encoding="utf-8"), re.M), (
        f"{name}: ops/guides/losses.md, The formulas, lacks its row: | `{name}` | its term | {bounds} | … |"
    )


def test_the_configuration_names_no_other_loss() -> None:
    assert set(get_args(LossName)) == set(NAMES), (
        "name the others in BOUNDED or UNBOUNDED of trainer/loss/choose.py"
    )
    assert set(RATIO_BOUNDS) == set(BOUNDED), f"RATIO_BOUNDS of {SETTINGS} is for losses with bounds alone"
