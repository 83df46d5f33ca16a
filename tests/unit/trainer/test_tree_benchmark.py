"""The benchmark of merging: both baselines compute the same loss as the tree, and the last line is machine-readable."""

import json

import pytest

from trainer.benchmarks.shapes import shapes
from trainer.benchmarks.tree import ONE_PASS, main, row_packs
from trainer.tree.pack import pack_samples


def test_the_last_line_of_json_lists_every_bar_with_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    main(json=True, scale=0.01)  # compares the losses of tree and baselines itself
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
