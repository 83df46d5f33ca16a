"""The GPU section of the tree's benchmark: small and on a CPU here, so that all of it but the device is tested; whole where there is a GPU."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from trainer.benchmarks import gpu
from trainer.benchmarks.shapes import Shape, group
from trainer.benchmarks.turns import flops
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget

pytestmark = pytest.mark.tier("trainer")

TINY = replace(
    gpu.FULL,
    device="cpu",
    dtype=torch.bfloat16,
    backend="rectangles",
    models={
        "dense": partial(gpu.dense, 32, 1, 4, 64, 300),
        "mixture": partial(gpu.mixture, 32, 2, 4, 16, 300, experts=8, top_k=2),
    },
    shapes=(
        Shape(name="chain", build=group(1, 6, 200, 8, 12)),
        Shape(name="group", build=group(4, 2, 300, 8, 12)),
    ),
    pass_tokens=512,
)


def test_every_model_shape_and_method_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = gpu.report(TINY)
    assert [(row["model"], row["shape"], row["method"]) for row in rows] == [
        (model, shape, method)
        for model in ("dense", "mixture")
        for shape in ("chain", "group")
        for method in ("tree", "varlen", "rollout")
    ]
    for row in rows:
        assert row["seconds"] > row["planning_s"] >= 0 and row["tflops"] > 0 and row["peak_gib"] is None
        assert (row["token_bound"] == row["flop_bound"] == row["speed_up"] == 1) == (
            row["method"] == "tree"
        ) or row["method"] == "rollout"
    by = {(row["model"], row["shape"], row["method"]): row for row in rows}
    assert by["dense", "group", "varlen"]["token_bound"] > by["dense", "group", "rollout"]["token_bound"] > 2
    output = capsys.readouterr().out
    assert "cpu, bfloat16, rectangles, passes of 512 tokens" in output and output.count("TFLOP/s") == 4


def test_of_experts_those_count_that_a_token_goes_through() -> None:
    few, many = (gpu.mixture(32, 2, 4, 16, 300, experts=experts, top_k=2) for experts in (4, 8))
    packs = [pack_samples(group(2, 2, 50, 4, 4)(300), PassBudget(1 << 20, 1 << 60))]
    router = 6 * 2 * 32 * 4 * packs[0].plan.tokens  # the router has a row per expert
    assert flops(many, packs) - flops(few, packs) == router


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so_and_measures_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainer.benchmarks.gpu", "--json"], capture_output=True, text=True, check=True
    )
    first, last = done.stdout.splitlines()
    assert first == gpu.NOTHING and json.loads(last) == {"bars": [], "rows": []}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_tree_takes_less_time_and_memory_is_measured() -> None:
    shapes = (Shape(name="group", build=group(8, 4, 4096, 64, 128)),)
    tree, varlen, _ = gpu.report(
        replace(gpu.FULL, shapes=shapes, models={"dense": partial(gpu.dense, 256, 2, 4, 768, 2048)})
    )
    assert varlen["speed_up"] > 2 and 0 < tree["peak_gib"] < 40
