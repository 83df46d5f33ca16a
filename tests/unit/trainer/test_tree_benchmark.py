"""The benchmark of merging: all baselines compute the same loss as the tree, and the last line is machine-readable."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainer.benchmarks import tree as benchmark
from trainer.benchmarks.bounded import QUICK as QUICK_CASES
from trainer.benchmarks.bounded import Measured, bars, measure, report
from trainer.benchmarks.peaks import ONE_PASS
from trainer.benchmarks.plot import Point, draw
from trainer.benchmarks.qwen3 import policy
from trainer.benchmarks.rows import PADDED_ROWS, padded, rollout, varlen
from trainer.benchmarks.shapes import Shape, group, shapes
from trainer.benchmarks.turns import Race, Timed
from trainer.tree.pack import pack_samples

pytestmark = pytest.mark.tier("trainer")

TINY = replace(benchmark.QUICK, scale=0.01, rounds=2, most=1e12, cases=(), groups=1)


def test_the_last_line_of_json_lists_every_bar_with_its_target(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "shapes", lambda scale, quick=True: shapes(scale, quick=quick)[:2])
    benchmark.main(TINY, json=True, plot=tmp_path / "plot.svg")  # compares the losses itself
    *_, last = capsys.readouterr().out.splitlines()
    written = json.loads(last)
    assert len(written["bars"]) == 7
    for bar in written["bars"]:
        assert set(bar) == {"name", "value", "unit", "target", "holds"}
        at_most = "planning" in bar["name"]
        assert bar["holds"] == (bar["value"] <= bar["target"] if at_most else bar["value"] >= bar["target"])
    assert len(written["points"]) == 2 * 2  # varlen and rollout; padded only if there is time
    assert [row["method"] for row in written["rows"]] == ["tree", "varlen", "rollout"] * 2
    for row in written["rows"]:
        assert row["cpu_s"] > row["planning_s"] >= 0 and 0 < row["timed"] <= 1 and row["peak_mb"] is None
        assert (row["speed_up"] == row["token_bound"] == 1) or row["method"] != "tree"
        assert row["token_bound"] >= 1
    assert (tmp_path / "plot.svg").read_text().count("measured, against") == 2


def test_packed_baselines_have_one_row_per_completion_and_one_per_append_only_stretch() -> None:
    for shape, rows in zip(shapes(0.05), (1, 16, 8, 12, 16, 16), strict=True):
        samples = shape.build(100)
        tree = pack_samples(samples, ONE_PASS)
        each, stretches = varlen(samples), rollout(samples)
        assert sum(p.plan.tokens for p in each) == tree.naive_tokens
        assert sum(len(p.plan.squares) for p in each) == len(samples)
        assert sum(len(p.plan.squares) for p in stretches) == rows
        assert {len(tree.edges)} == {sum(len(p.edges) for p in packs) for packs in (each, stretches)}


def test_padded_rows_are_as_long_as_the_longest_of_their_micro_batch_and_lose_no_sample() -> None:
    samples = shapes(0.05)[0].build(100)
    packs = padded(samples)
    assert sorted(len(s.tokens) for p in packs for s in p.samples) == [len(s.tokens) for s in samples]
    for pack in packs:
        longest = max(len(sample.tokens) for sample in pack.samples)
        assert np.diff(pack.plan.squares).tolist() == [[longest]] * PADDED_ROWS
    assert sum(pack.plan.tokens for pack in packs) > sum(len(sample.tokens) for sample in samples)


def test_a_slow_stretch_that_hits_all_methods_leaves_their_ratio_as_it_is() -> None:
    tree = Timed(tokens=10, flops=100.0, slices=1, rates=[1.0, 3.0, 1.0, 1.1, 9.0])
    each = Timed(tokens=100, flops=1000.0, slices=5, rates=[1.0, 3.0, 1.0, 1.1, 1.0])
    assert each.bound(tree) == 10
    assert each.over(tree) == 10
    assert tree.seconds == pytest.approx(110)


def test_a_race_runs_every_pack_of_every_method_and_the_loss_of_a_sample_is_the_same_in_all() -> None:
    samples = shapes(0.01)[0].build(64)
    methods = {
        "tree": lambda: [pack_samples(samples, ONE_PASS)],
        "each": lambda: [pack_samples([sample], ONE_PASS) for sample in samples],
        "padded": lambda: padded(samples),
    }
    race = Race(policy(), methods, rounds=4)
    race.run()
    tree, each = race.timed["tree"], race.timed["each"]
    assert tree.share == each.share == race.timed["padded"].share == 1
    assert tree.losses.keys() == {id(sample) for sample in samples}
    assert each.losses == pytest.approx(tree.losses, rel=1e-4)
    assert race.timed["padded"].losses == pytest.approx(tree.losses, rel=1e-4)
    assert tree.planning < tree.seconds and tree.tokens < each.tokens


def test_of_an_expensive_method_long_and_short_rows_are_timed_but_no_less_than_a_tenth() -> None:
    samples = sorted(shapes(0.01)[0].build(64), key=lambda sample: -len(sample.tokens))
    methods = {"each": lambda: [pack_samples([sample], ONE_PASS) for sample in samples]}
    race = Race(policy(), methods, rounds=4, most=1.0)
    race.run()
    each = race.timed["each"]
    ran = [number for number, sample in enumerate(samples) if id(sample) in each.losses]
    assert ran == [0, 6, 12, 18] and 0.1 < each.share < 0.25
    race.run()
    assert len(each.losses) == 8 and len(each.rates) == 8


def test_a_shape_that_misses_is_measured_again_and_every_measurement_counts() -> None:
    good = Shape(name="chain", build=group(1, 4, 8, 4, 4))
    bars, timed, draws = benchmark.compare(policy(), replace(good, target_varlen=1e9), TINY)
    assert draws == benchmark.DRAWS and len(timed["tree"].rates) == draws * TINY.rounds
    assert not bars[-1]["holds"]
    assert "measured 3 times, all count" in benchmark.table(good, timed, {}, draws)[0]


def test_the_table_shows_bounds_time_and_memory_of_every_method() -> None:
    timed = {
        "tree": Timed(
            tokens=100,
            flops=50.0,
            slices=1,
            rates=[0.1],
            plannings=[0.05],
            ran={0: 50.0},
            losses={1: 2.0, 2: 2.0},
        ),
        "varlen": Timed(
            tokens=400, flops=150.0, slices=2, rates=[0.2], plannings=[0.05], ran={0: 75.0}, losses={1: 2.0}
        ),
    }
    lines = benchmark.table(
        Shape(name="a", build=group(1, 1, 1, 1, 1)), timed, {"tree": 9.0, "passes": 4.4}, 1
    )
    assert lines[0] == "a: 2 samples, planning 1.0%"
    assert lines[2].split() == ["tree", "100", "5.00", "100%", "9"]
    assert lines[3].split() == ["varlen", "400", "4.00×", "3.00×", "6.00×", "200%", "30.00", "50%"]
    assert lines[4].split()[-2:] == ["tokens", "4"]


def test_the_same_points_draw_the_same_picture(tmp_path: Path) -> None:
    points = [
        Point(shape="a", baseline="varlen", tokens=12.0, bound=10.0, speed_up=9.5),
        Point(shape="a", baseline="rollout", tokens=1.0, bound=1.0, speed_up=1.0),
    ]
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    draw(points, first)
    draw(points, second)
    assert first.read_bytes() == second.read_bytes()
    assert "FLOP bound" in first.read_text()


def test_passes_compute_the_loss_of_one_pass_in_the_memory_benchmark_too() -> None:
    whole, parts = measure("whole", 0.02), measure("bounded", 0.02)
    assert whole.passes == 1 and parts.passes > 10 and parts.tokens == whole.tokens
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)


def test_a_long_path_goes_through_a_whole_train_step_of_the_defaults() -> None:
    step = measure("step", 0.02)
    assert step.tokens == round(0.02 * 32_768) and step.passes == 1 and step.seconds > 0
    assert step.loss != 0.0
    assert [one["name"] for one in bars({"step": step})] == ["train step on 32768 tokens: CPU"]


def test_the_memory_bars_miss_what_takes_more_memory_or_time() -> None:
    good = {
        "whole": Measured(tokens=9, passes=1, seconds=1.0, peak=50.0, loss=1.0),
        "longest": Measured(tokens=3, passes=1, seconds=0.3, peak=20.0, loss=0.3),
        "bounded": Measured(tokens=9, passes=4, seconds=1.5, peak=15.0, loss=1.0),
        "row": Measured(tokens=9, passes=1, seconds=1.0, peak=50.0, loss=2.0),
        "path": Measured(tokens=9, passes=4, seconds=1.7, peak=55.0, loss=2.0),
        "longpath": Measured(tokens=54, passes=24, seconds=60.0, peak=49.0, loss=12.0),
    }
    assert [one["holds"] for one in bars(good)] == [True, True, False, False, True, True]
    assert len(bars({case: good[case] for case in QUICK_CASES})) == 2


def test_times_in_passes_that_miss_are_measured_once_more_and_both_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = {"whole": [1.0, 1.0], "longest": [0.3, 0.3], "bounded": [2.0, 1.0]}

    def run(case: str) -> Measured:
        return Measured(
            tokens=9, passes=1, seconds=seconds[case].pop(0), peak={"whole": 50.0}.get(case, 20.0), loss=1.0
        )

    peak, time = report(QUICK_CASES, run)
    assert time["value"] == 1.5 and time["holds"] and peak["holds"]
    assert capsys.readouterr().out.count("again") == 3
