"""How much faster is prefix-tree merging, against which baseline, and how close to the bound?

Three baselines with the same model, attention kernel and head (rows.py):
  padded    one row per completion, padded to the longest of its micro-batch
  varlen    one row per completion, packed: what a trainer that takes (state, action) pairs as they come does
  rollout   one row per append-only stretch of a rollout, packed: what a trainer that keeps whole rollouts does
The token bound is the ratio of the tokens, the FLOP bound that of the floating-point operations. Time is process CPU time of planning, forward and
backward, one thread; the methods are timed in turns (turns.py), of an expensive baseline every so-manieth part (column "timed"). Memory is the growth
of the resident set in fresh processes (peaks.py, bounded.py). Where there is a GPU its section follows (gpu.py), without bars.
Run: ops/bench tree [--quick | --long] [--json] [--plot FILE.svg]
"""

import argparse
import json as json_module
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from orchestrator.runtime.output_place import file_to_write
from trainer.benchmarks import bounded, gpu
from trainer.benchmarks.peaks import ONE_PASS, budget, peaks
from trainer.benchmarks.plot import Point, draw
from trainer.benchmarks.qwen3 import policy
from trainer.benchmarks.rows import BASELINES, ROW_BUDGET
from trainer.benchmarks.shapes import Shape, group, shapes
from trainer.benchmarks.targets import bar
from trainer.benchmarks.turns import Race, Timed, flops
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget

ONLY_SHOWN = frozenset({"padded"})  # baselines without a bar
DRAWS = 3
BOUND_SHARE = 0.9  # share of the FLOP bound that must be reached against varlen


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeExtent:
    """The size of the measurement."""

    scale: float  # of all lengths
    rounds: int  # in which every method is timed in turn
    most: float  # operations of a baseline that are timed per shape
    quick: bool  # without the largest shape, the table of memory and the baseline without a bar
    cases: tuple[str, ...]  # of bounded.py
    groups: int  # of the large batch that is only planned


FULL = TreeExtent(scale=1.0, rounds=6, most=1e12, quick=False, cases=bounded.CASES, groups=32)
LONG = TreeExtent(scale=1.0, rounds=6, most=1e12, quick=False, cases=bounded.LONG, groups=32)
QUICK = TreeExtent(scale=0.3, rounds=5, most=1e11, quick=True, cases=bounded.QUICK, groups=32)


def compare(
    model: Any, shape: Shape, extent: TreeExtent
) -> tuple[list[dict[str, Any]], dict[str, Timed], int]:
    """A shape's bars, the times of each method, and how often the shape was measured.

    If a bar misses its target, the shape is measured again, at most `DRAWS` times in all, and every measurement counts: other work on the machine
    slows one draw in many.
    """
    samples = shape.build(model.config.vocab_size)
    baselines = {
        name: partial(make, samples)
        for name, make in BASELINES.items()
        if not (extent.quick and name in ONLY_SHOWN)
    }
    race = Race(
        model,
        {"tree": lambda: [pack_samples(samples, budget(shape))], **baselines},
        rounds=extent.rounds,
        most=extent.most,
    )
    draws = 0
    found: list[dict[str, Any]] = []
    while not draws or (draws < DRAWS and not all(entry["holds"] for entry in found)):
        race.run()
        found = _bars(shape, race.timed)
        draws += 1
    tree = race.timed["tree"]
    for name in baselines:
        for sample, loss in race.timed[name].losses.items():
            assert abs(tree.losses[sample] - loss) <= 1e-4 * abs(loss), (name, tree.losses[sample], loss)
    return found, race.timed, draws


def _bars(shape: Shape, timed: Mapping[str, Timed]) -> list[dict[str, Any]]:
    tree, varlen, rollout = timed["tree"], timed["varlen"], timed["rollout"]
    share = varlen.over(tree) / varlen.bound(tree)
    planning = tree.planning / tree.seconds
    found = [
        bar(f"{shape.name}: share of the bound, varlen", share, "ratio", BOUND_SHARE),
        bar(f"{shape.name}: planning", planning, "share of the step", 0.02, at_most=True),
    ]
    if shape.target_varlen:
        found.append(bar(f"{shape.name}: speed-up, varlen", varlen.over(tree), "×", shape.target_varlen))
    if shape.target_rollout:
        found.append(
            bar(f"{shape.name}: speed-up, rollout rows", rollout.over(tree), "×", shape.target_rollout)
        )
    return found


def table(shape: Shape, timed: Mapping[str, Timed], peak: Mapping[str, float], draws: int) -> list[str]:
    """One line per method. `peak`: MB by method; "passes" is the tree's."""
    tree = timed["tree"]
    samples = len(tree.losses)
    title = f"{shape.name}: {samples} samples, planning {tree.planning / tree.seconds:.1%}"
    lines = [f"{title}{f', measured {draws} times, all count' if draws > 1 else ''}"]
    head = ("tokens", "token bound", "FLOP bound", "speed-up", "of the bound", "CPU s", "timed", "peak MB")
    lines.append(f"  {'':8}" + "".join(f"{name:>13}" for name in head))
    for name, result in timed.items():
        bounds = (
            ("",) * 4
            if result is tree
            else (
                f"{result.tokens / tree.tokens:.2f}×",
                f"{result.bound(tree):.2f}×",
                f"{result.over(tree):.2f}×",
                f"{result.over(tree) / result.bound(tree):.0%}",
            )
        )
        cells = (
            f"{result.tokens}",
            *bounds,
            f"{result.seconds:.2f}",
            f"{result.share:.0%}",
            _mb(peak, name),
        )
        lines.append(f"  {name:8}" + "".join(f"{cell:>13}" for cell in cells))
    if "passes" in peak and not shape.in_passes:
        lines.append(f"  tree in passes of {ROW_BUDGET} tokens{_mb(peak, 'passes'):>80}")
    return lines


def _mb(peak: Mapping[str, float], method: str) -> str:
    return f"{peak[method]:.0f}" if method in peak else ""


def rows(shape: Shape, timed: Mapping[str, Timed], peak: Mapping[str, float]) -> list[dict[str, Any]]:
    """The figures of `table`, unrounded: `cpu_s` of one train step, `timed` its timed share; against the tree `speed_up` and the two
    bounds (ratios); `peak_mb` if memory was measured."""
    tree = timed["tree"]
    return [
        {
            "shape": shape.name,
            "method": name,
            "samples": len(tree.losses),
            "tokens": result.tokens,
            "token_bound": result.tokens / tree.tokens,
            "flop_bound": result.bound(tree),
            "speed_up": result.over(tree),
            "cpu_s": result.seconds,
            "planning_s": result.planning,
            "timed": result.share,
            "peak_mb": peak.get(name),
        }
        for name, result in timed.items()
    ]


def points(shape: Shape, timed: Mapping[str, Timed]) -> list[Point]:
    """A shape's points in the plot."""
    tree = timed["tree"]
    return [
        Point(
            shape=shape.name,
            baseline=name,
            tokens=timed[name].tokens / tree.tokens,
            bound=timed[name].bound(tree),
            speed_up=timed[name].over(tree),
        )
        for name in timed
        if name != "tree"
    ]


def large_batch(model: Any, seconds_per_flop: float, groups: int) -> dict[str, Any]:
    """Plan a batch that is too large to train here, print its line and return its bar: planning time against the step's time, estimated from its
    operations."""
    samples = group(8, 30, 1000, 100, 100, groups)(model.config.vocab_size)
    started = time.process_time()
    pack = pack_samples(samples, PassBudget(16384))
    planning = time.process_time() - started
    step = flops(model, [pack]) * seconds_per_flop
    print(
        f"planning {len(samples)} stored steps: {pack.naive_tokens} → {pack.plan.tokens} tokens in {len(pack.passes)} passes, "
        f"{planning:.2f} s of a step of {step:.0f} s"
    )
    return bar("planning a large batch", planning / step, "share of the step", 0.02, at_most=True)


def main(extent: TreeExtent = FULL, *, json: bool = False, plot: Path | None = None) -> None:
    """Print a table per shape, of planning, of memory and of a GPU, then the bars; with `json` one last line
    {"bars": […], "points": […], "rows": […], "gpu": […]}."""
    torch.set_num_threads(1)
    started = os.times()
    model = policy()
    print(f"all lengths × {extent.scale}; torch {torch.__version__}, one thread, float32")
    warm_up = shapes(0.1)[0].build(model.config.vocab_size)
    Race(model, {"tree": lambda: [pack_samples(warm_up, ONE_PASS)]}, rounds=1).run()
    bars: list[dict[str, Any]] = []
    found: list[Point] = []
    figures: list[dict[str, Any]] = []
    for number, shape in enumerate(shapes(extent.scale, quick=extent.quick)):
        shape_bars, timed, draws = compare(model, shape, extent)
        peak = {} if extent.quick else peaks(number, extent.scale)
        print(*table(shape, timed, peak, draws), sep="\n", flush=True)
        bars += shape_bars
        found += points(shape, timed)
        figures += rows(shape, timed, peak)
    bars.append(large_batch(model, timed["tree"].seconds / timed["tree"].flops, extent.groups))
    if extent.cases:
        bars += bounded.report(extent.cases)
    gpu_rows = [] if extent.quick else gpu.report()
    if plot is not None:
        draw(found, plot)
    ended = os.times()
    print(f"{sum(ended[:4]) - sum(started[:4]):.0f} s of CPU in all, {ended.elapsed - started.elapsed:.0f} s")
    if json:
        print(
            json_module.dumps(
                {
                    "bars": bars,
                    "points": [point.as_json() for point in found],
                    "rows": figures,
                    "gpu": gpu_rows,
                }
            )
        )
        return
    for entry in bars:
        print(
            f"{'holds ' if entry['holds'] else 'MISSED'} {entry['name']}: {entry['value']} (target {entry['target']})"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    extents = parser.add_mutually_exclusive_group()
    extents.add_argument(
        "--quick", action="store_const", dest="extent", const=QUICK, help="all lengths × 0.3, a minute"
    )
    extents.add_argument(
        "--long", action="store_const", dest="extent", const=LONG, help="with a path of 196,608 tokens"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="speed-up against sharing, as a picture"
    )
    options = parser.parse_args()
    if options.plot is not None:
        try:
            file_to_write("--plot", options.plot)
        except ValueError as error:
            parser.error(str(error))
    main(options.extent or FULL, json=options.json, plot=options.plot)
