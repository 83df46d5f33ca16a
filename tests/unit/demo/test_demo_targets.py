"""The demo reports its required results and whether it reached them."""

import io
import itertools
import json
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from ops.lab.demo.outcome import DemoOutcome, Results
from ops.lab.demo.phases import Evaluation
from ops.lab.demo.report import final_line, show_bars, show_evaluations
from ops.lab.demo.targets import bars, change, difference
from orchestrator.queries.evaluations import EvaluationPoint, wilson


def point(successes: int, n: int, domain: str = "all", effective: float | None = None) -> EvaluationPoint:
    low, high = wilson(successes, n, effective)
    success = successes / n
    return EvaluationPoint(
        suite="x", version=0, domain=domain, wanted=n, n=n, successes=successes, success=success, low=low, high=high, mean=success
    )  # fmt: skip


def evaluation(successes: int, n: int, effective: float | None = None) -> Evaluation:
    points = [point(successes, n, domain, effective) for domain in ("coding", "all")] if n else []
    return Evaluation(
        label="x",
        version=0,
        seconds=1.0,
        points={each.domain: each for each in points},
        blackbox=0,
        wanted=n,
    )


def share(successes: int, n: int) -> tuple[float, float, float]:
    low, high = wilson(successes, n)
    return low, successes / n, high


def found(
    before: int, after: int, greedy: tuple[int, int] = (80, 80), *, lost: int = 0, violations: int = 0
) -> Results:
    run = DemoOutcome(
        run_id=7, ledger=600, lost=lost, trained_twice=0, groups=1, rollouts=1, blackbox=1, steps=1, tokens_stored=1, tokens_naive=1,
        merge_ratio=2.5, train_steps=16, version=16, checkpoint="x", first_attempt=1.0, first_step=2.0, curve=[], answers=[],
    )  # fmt: skip
    audit = cast("Any", SimpleNamespace(violations=violations))
    return Results(
        before=evaluation(before, 200),
        greedy_before=evaluation(greedy[0], 100),
        after=evaluation(after, 200),
        greedy_after=evaluation(greedy[1], 100),
        run=run,
        run_s=1.0,
        audit=audit,
    )


def missed(results: Results, *, control: bool) -> list[str]:
    return [bar.name for bar in bars(results, control=control) if not bar.holds]


def test_a_demo_holds_with_twenty_points_and_nothing_lost() -> None:
    assert missed(found(60, 100), control=False) == []
    assert missed(found(60, 99), control=False) == ["success rises"]
    assert missed(found(60, 140, lost=1, violations=2), control=False) == ["lost", "violations"]


def test_a_control_is_flat_if_the_interval_of_its_change_holds_zero_and_a_rise_fails_like_a_fall() -> None:
    assert missed(found(66, 64), control=True) == []
    assert missed(found(66, 44), control=True) == ["success changes in the control"]
    assert missed(found(66, 90), control=True) == ["success changes in the control"]
    assert missed(found(66, 64, (82, 61)), control=True) == ["greedy success changes in the control"]


def test_the_interval_of_a_difference_is_that_of_the_published_examples() -> None:
    # Newcombe 1998, table II, method 10: 56/70 - 48/80 and 10/10 - 0/10, with the shares in the other order.
    assert [round(x, 4) for x in difference(share(48, 80), share(56, 70))] == [0.0524, 0.3339]
    assert [round(x, 4) for x in difference(share(0, 10), share(10, 10))] == [0.6075, 1.0]


def test_tries_that_are_alike_widen_the_interval_of_the_change() -> None:
    independent, alike = (
        change(evaluation(66, 200), evaluation(49, 200)),
        change(evaluation(66, 200, 100.0), evaluation(49, 200, 100.0)),
    )
    assert independent[0] == alike[0] == pytest.approx(-0.085)
    assert alike[1][0] < independent[1][0] and independent[1][1] < alike[1][1]


def test_an_evaluation_without_a_verdict_tells_nothing_and_does_not_end_the_report() -> None:
    for sides in ((0, 9), (9, 0), (0, 0)):
        one, other = (evaluation(n // 2, n) for n in sides)
        assert change(one, other) == (0.0, (-1.0, 1.0))
        results = replace(found(66, 120), before=one, after=other)
        line = json.loads(
            final_line(seed=3, control=False, setup_s=0.0, policy_s=0.0, began=0.0, found=results)
        )
        assert line["eval_n"] == 0 and line["eval_gain_ci"] == [-1.0, 1.0]
        show_evaluations(Console(file=io.StringIO(), width=40), one, other, (one, other))


def test_the_interval_of_a_difference_holds_the_true_one_in_about_ninety_five_of_a_hundred_draws() -> None:
    draw = random.Random(5)
    for p, q in itertools.product((0.05, 0.33, 0.8), repeat=2):
        held = 0
        for _ in range(400):
            ok, ok_after = (sum(draw.random() < share for _ in range(200)) for share in (p, q))
            low, high = difference(share(ok, 200), share(ok_after, 200))
            held += low <= q - p <= high
        assert 0.92 <= held / 400 <= 0.99, (p, q, held)


@pytest.mark.parametrize("control", [False, True])
def test_the_final_line_and_what_people_read_have_the_same_bars(control: bool) -> None:
    results = found(66, 120)
    line = json.loads(
        final_line(seed=3, control=control, setup_s=0.0, policy_s=0.0, began=0.0, found=results)
    )
    out = io.StringIO()
    show_bars(Console(file=out, width=40), bars(results, control=control))
    shown = out.getvalue().splitlines()
    assert line["control"] is control and line["eval_gain"] == 0.27
    assert [bar["name"] for bar in line["bars"]] == [text.partition(":")[0] for text in shown]
    assert [bar["holds"] for bar in line["bars"]] == [text.endswith(": holds") for text in shown]
    assert "+27.0 points [+17.3, +36.0]" in shown[0] and shown[0].endswith("MISSED" if control else "holds")
