"""The benchmark of merging: both baselines compute the same loss as the tree, and the last line is machine-readable."""

import json

import pytest

from trainer.benchmarks.bounded import Measured, bars, measure
from trainer.benchmarks.shapes import shapes
from trainer.benchmarks.tree import ONE_PASS, main, row_packs
from trainer.tree.pack import pack_samples


def test_the_last_line_of_json_lists_every_bar_with_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    main(json=True, scale=0.01, memory=False)  # compares the losses of tree and baselines itself
    *_, last = capsys.readouterr().out.splitlines()
    bars = json.loads(last)["bars"]
    assert len(bars) >= 12
    for bar in bars:
        assert set(bar) == {"name", "value", "unit", "target", "holds"}
        at_most = "planning" in bar["name"]
        assert bar["holds"] == (bar["value"] <= bar["target"] if at_most else bar["value"] >= bar["target"])


def test_the_baselines_forward_one_row_per_completion_and_one_per_append_only_stretch() -> None:
    for shape, rows in zip(shapes(0.05, long=True), (1, 16, 8, 12, 16), strict=True):
        samples = shape.build(100)
        tree = pack_samples(samples, ONE_PASS)
        varlen = row_packs(samples, per_rollout=False)
        rollout = row_packs(samples, per_rollout=True)
        assert sum(p.plan.tokens for p in varlen) == tree.naive_tokens
        assert sum(len(p.plan.squares) for p in varlen) == len(samples)
        assert sum(len(p.plan.squares) for p in rollout) == rows
        assert {len(tree.edges)} == {sum(len(p.edges) for p in packs) for packs in (varlen, rollout)}


def test_passes_compute_the_loss_of_one_pass_in_the_memory_benchmark_too() -> None:
    whole, parts = measure("whole", 0.02), measure("bounded", 0.02)
    assert whole.passes == 1 and parts.passes > 10 and parts.tokens == whole.tokens
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)


def test_the_memory_bars_miss_what_takes_more_memory_or_time() -> None:
    good = {
        "whole": Measured(9, 1, 1.0, 50.0, 1.0),
        "longest": Measured(3, 1, 0.3, 20.0, 0.3),
        "bounded": Measured(9, 4, 1.5, 15.0, 1.0),
        "row": Measured(9, 1, 1.0, 50.0, 2.0),
        "path": Measured(9, 4, 1.7, 55.0, 2.0),
    }
    assert [one["holds"] for one in bars(good)] == [True, True, False, False, True]
    assert len(bars({case: good[case] for case in ("whole", "longest", "bounded")})) == 2
