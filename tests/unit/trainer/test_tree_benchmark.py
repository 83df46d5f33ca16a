"""The benchmark of merging: both baselines compute the same loss as the tree, and the last line is machine-readable."""

import json

import pytest

from trainer.benchmarks.bounded import Measured, bars, measure, report
from trainer.benchmarks.shapes import shapes
from trainer.benchmarks.tree import ONE_PASS, main, policy, row_packs
from trainer.benchmarks.turns import Race, Timed
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


def test_a_slow_stretch_that_hits_all_methods_leaves_their_ratio_as_it_is() -> None:
    tree = Timed(10, 100.0, 1, rates=[1.0, 3.0, 1.0, 1.1, 9.0])
    varlen = Timed(100, 1000.0, 5, rates=[1.0, 3.0, 1.0, 1.1, 1.0])
    assert varlen.bound(tree) == 10
    assert varlen.over(tree) == 10
    assert tree.seconds == pytest.approx(110)


def test_a_race_runs_every_pack_of_every_method_and_its_rounds_add_up() -> None:
    samples = shapes(0.01)[0].build(64)
    race = Race(
        policy(),
        {
            "tree": lambda: [pack_samples(samples, ONE_PASS)],
            "each": lambda: [pack_samples([sample], ONE_PASS) for sample in samples],
        },
    )
    race.run(5)
    assert len(race.timed["each"].losses) == 20  # 5 of 6 slices of 24 packs
    race.run(1)
    tree, each = race.timed["tree"], race.timed["each"]
    assert len(tree.rates) == len(each.rates) == 6
    assert tree.losses.keys() == {id(sample) for sample in samples}
    assert each.losses == pytest.approx(tree.losses, rel=1e-4)
    assert tree.planning < tree.seconds and tree.tokens < each.tokens


def test_times_in_passes_that_miss_are_measured_once_more_and_both_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = {"whole": [1.0, 1.0], "longest": [0.3, 0.3], "bounded": [2.0, 1.0]}

    def run(case: str) -> Measured:
        return Measured(9, 1, seconds[case].pop(0), {"whole": 50.0}.get(case, 20.0), 1.0)

    peak, time = report(long=False, apart=run)
    assert time["value"] == 1.5 and time["holds"] and peak["holds"]
    assert capsys.readouterr().out.count("again") == 3
