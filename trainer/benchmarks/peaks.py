"""Peak memory of each method on each shape: `python -m trainer.benchmarks.peaks SHAPE METHOD [--scale 1]` prints MB as one JSON line.

A baseline's peak is that of its largest micro-batch, which is the only one that is run. `tree` is the shape's tree as it is timed, `passes` the same
tree in passes of as many tokens as a micro-batch of the packed baselines holds.
"""

import argparse
import json
import os

from orchestrator.contracts.numbers import INT4, option, real, whole

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from trainer.benchmarks.qwen3 import VOCAB, policy
from trainer.benchmarks.resident import grown, in_fresh_process
from trainer.benchmarks.rows import BASELINES, ROW_BUDGET
from trainer.benchmarks.shapes import Shape, shapes
from trainer.tree.execute import backward
from trainer.tree.pack import pack_samples
from trainer.tree.passes import PassBudget

METHODS = ("tree", "passes", *BASELINES)
ONE_PASS = PassBudget(1 << 30, 1 << 60)
PASSES = PassBudget(ROW_BUDGET, 1 << 60)


def budget(shape: Shape) -> PassBudget:
    """The budget with which the shape's tree is timed."""
    return PASSES if shape.in_passes else ONE_PASS


def peak(number: int, method: str, scale: float) -> float:
    """MB that method `method` needs for shape `number` of `shapes`, in this process, which must be fresh."""
    torch.set_num_threads(1)
    model = policy()
    shape = shapes(scale)[number]
    samples = shape.build(VOCAB)

    def work() -> None:
        if method in BASELINES:
            pack = max(BASELINES[method](samples), key=lambda pack: pack.plan.tokens)
        else:
            pack = pack_samples(samples, PASSES if method == "passes" else budget(shape))
        backward(model, pack, lambda rows, logp: -logp.sum())

    return grown(model, work)[1]


def peaks(number: int, scale: float) -> dict[str, float]:
    """MB by method, each in a fresh process."""
    return {
        method: in_fresh_process("trainer.benchmarks.peaks", str(number), method, "--scale", str(scale))
        for method in METHODS
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "shape",
        type=option(whole, least=0, most=INT4),
        choices=range(len(shapes(1.0))),
        help="its place in the table",
    )
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--scale", type=option(real, least=0.001, most=100), default=1.0)
    options = parser.parse_args()
    print(json.dumps(peak(options.shape, options.method, options.scale)))


if __name__ == "__main__":
    main()
